// The tokens of a training row.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks'
import { count, plural } from './format'
import { show } from './message'
import { useLoaded } from './page'
import { useRows } from './virtual'

interface TokenRow {
	ids: number[]
	mask: number[]
	logprobs: number[]
	texts?: string[]
	calls: { call: number; start: number; end: number; trained: boolean; versions?: { version: string; start: number; end: number }[] }[]
}

// The class of a token's log-prob: lp0 is certain, lp9 is the least likely.
function shade(p: number): string {
	return 'lp' + Math.max(0, Math.min(9, Math.floor(-p * 2)))
}

// A stretch has tokens with the same mask one after the other.
interface Stretch {
	start: number
	end: number
	trained: boolean
}

function stretchesOf(mask: number[]): Stretch[] {
	const out: Stretch[] = []
	mask.forEach((m, i) => {
		const last = out.at(-1)
		if (last && last.trained === (m === 1)) last.end = i + 1
		else out.push({ start: i, end: i + 1, trained: m === 1 })
	})
	return out
}

// A line has the tokens from start to end, or is a folded stretch.
interface Line {
	start: number
	end: number
	folded?: boolean
}

const shortest = 24 // tokens of context that are folded
const least = 24 // characters of a line

// written is a token as the page writes it: the end of a line is seen, and ends it.
const written = (r: TokenRow, i: number) => (r.texts ? (r.texts[i] ?? '').replace(/\n/g, '⏎').replace(/\t/g, '⇥') || '∅' : String(r.ids[i]))

function linesOf(r: TokenRow, stretches: Stretch[], open: ReadonlySet<number>, across: number): Line[] {
	const out: Line[] = []
	for (const s of stretches) {
		if (!s.trained && s.end - s.start >= shortest && !open.has(s.start)) {
			out.push({ start: s.start, end: s.end, folded: true })
			continue
		}
		let start = s.start
		let width = 0
		for (let i = s.start; i < s.end; i++) {
			const more = written(r, i).length + edge
			if (i > start && width + more > across) {
				out.push({ start, end: i })
				start = i
				width = 0
			}
			width += more
			if (r.texts?.[i]?.endsWith('\n')) {
				out.push({ start, end: i + 1 })
				start = i + 1
				width = 0
			}
		}
		if (start < s.end) out.push({ start, end: s.end })
	}
	return out
}

const lineHeight = 24
const letter = 6.7 // width of a character in pixels
const edge = 1.6 // of a token, in characters

// TokenView shows a row. A place with a call begins at the tokens of its answer.
export function TokenView({ path, place }: { path: string; place: { call?: number } }) {
	const [r, error] = useLoaded<TokenRow>(path, '')
	return (
		<>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{r ? <Tokens r={r} place={place} /> : null}
		</>
	)
}

function Tokens({ r, place }: { r: TokenRow; place: { call?: number } }) {
	const scroll = useRef<HTMLDivElement>(null)
	const [open, setOpen] = useState<ReadonlySet<number>>(new Set())
	const [at, setAt] = useState(-1) // the selected token
	const [across, setAcross] = useState(100)
	const stretches = useMemo(() => stretchesOf(r.mask), [r])
	const lines = useMemo(() => linesOf(r, stretches, open, across), [r, stretches, open, across])
	const list = useRows(scroll, lines.length, lineHeight)
	useLayoutEffect(() => {
		const fit = () => setAcross(Math.max(least, Math.floor(((scroll.current?.clientWidth ?? 0) - 80) / letter)))
		fit()
		addEventListener('resize', fit)
		return () => removeEventListener('resize', fit)
	}, [])
	const select = (i: number) => {
		setAt(i)
		const line = lines.findIndex((l) => i >= l.start && i < l.end)
		if (line >= 0) list.scrollToIndex(line, { align: 'center' })
	}
	useEffect(() => {
		const span = r.calls.find((c) => c.call === place.call)
		if (!span) return
		select(span.start)
		scroll.current?.scrollIntoView({ block: 'center' })
		scroll.current?.focus({ preventScroll: true })
	}, [r, place])
	const trained = stretches.filter((s) => s.trained)
	const jump = (by: 1 | -1) => {
		const next = by > 0 ? trained.find((s) => s.start > at) : [...trained].reverse().find((s) => s.end <= at)
		if (next) select(next.start)
	}
	const of = (i: number) => r.calls.find((c) => i < c.end) ?? r.calls.at(-1) // a prompt belongs to the call behind it
	const onKey = (e: KeyboardEvent) => {
		if (e.ctrlKey || e.metaKey || e.altKey) return
		const steps: Record<string, () => void> = {
			n: () => jump(1),
			p: () => jump(-1),
			ArrowRight: () => select(Math.min(r.ids.length - 1, at + 1)),
			ArrowLeft: () => select(Math.max(0, at - 1)),
			Enter: () => at >= 0 && e.target === scroll.current && of(at) && show('call-' + of(at)!.call),
		}
		const step = steps[e.key]
		if (!step || (e.key === 'Enter' && e.target !== scroll.current)) return
		step()
		e.preventDefault()
		e.stopPropagation()
	}
	const about = (i: number) => {
		const c = r.calls.find((c) => i >= c.start && i < c.end)
		if (!r.mask[i]) return c ? `token ${i}, id ${r.ids[i]}: answer of call ${c.call}, not trained in this row` : `token ${i}, id ${r.ids[i]}: context`
		const version = c?.versions?.find((v) => i - c.start >= v.start && i - c.start < v.end)
		return `token ${i}, id ${r.ids[i]}: call ${c?.call}, log-prob ${r.logprobs[i]!.toFixed(4)}${version ? ', ' + version.version : ''}`
	}
	const size = r.ids.length
	return (
		<>
			<p class="legend">
				<span class="token mask0">context</span> trained, by log-prob:
				{[0, 1, 2, 4, 6, 9].map((n) => (
					<span key={n} class={'token lp' + n}>
						{n === 9 ? '≤ −4.5' : n === 0 ? '0' : '−' + n / 2}
					</span>
				))}
			</p>
			<svg
				class="where"
				viewBox={`0 0 ${size} 10`}
				preserveAspectRatio="none"
				role="img"
				aria-label={plural(trained.length, 'stretch').replace(/stretchs$/, 'stretches') + ' of trained tokens'}
				onClick={(e) => {
					const box = e.currentTarget.getBoundingClientRect()
					select(Math.max(0, Math.min(size - 1, Math.floor(((e.clientX - box.left) / box.width) * size))))
				}}
			>
				{trained.map((s) => (
					<rect key={s.start} x={s.start} width={Math.max(s.end - s.start, size / 400)} height={10} />
				))}
				{at >= 0 ? <line class="here" x1={at + 0.5} x2={at + 0.5} y1={0} y2={10} /> : null}
			</svg>
			<p class="buttons left">
				<button disabled={!trained.some((s) => s.end <= at)} onClick={() => jump(-1)}>
					← trained (p)
				</button>
				<button disabled={!trained.some((s) => s.start > at)} onClick={() => jump(1)}>
					trained → (n)
				</button>
				{open.size ? <button onClick={() => setOpen(new Set())}>Fold the context</button> : null}
			</p>
			<div class="tokens" ref={scroll} tabIndex={0} role="group" aria-label="Tokens" onKeyDown={onKey}>
				<div class="body" style={{ height: list.getTotalSize() + 'px' }}>
					{list.getVirtualItems().map((v) => {
						const l = lines[v.index]
						if (!l) return null
						return (
							<div key={v.index} class="line" style={{ transform: `translateY(${v.start}px)` }}>
								<span class="number">{l.start}</span>
								{l.folded ? (
									<button class="fold" onClick={() => setOpen(new Set([...open, l.start]))}>
										… {count(l.end - l.start)} tokens of context
									</button>
								) : (
									r.ids.slice(l.start, l.end).map((_, n) => {
										const i = l.start + n
										return (
											<span key={i} class={'token ' + (r.mask[i] ? shade(r.logprobs[i]!) : 'mask0')} data-at={i === at ? '' : undefined} title={about(i)} onClick={() => setAt(i)}>
												{written(r, i)}
											</span>
										)
									})
								)}
							</div>
						)
					})}
				</div>
			</div>
			{at >= 0 ? (
				<p class="about chosen" role="status">
					{about(at)}
					{r.texts ? <> <code>{written(r, at)}</code></> : null}{' '}
					{of(at) ? <button onClick={() => show('call-' + of(at)!.call)}>Call {of(at)!.call} in the conversation</button> : null}
				</p>
			) : null}
		</>
	)
}
