// The events of a rollout as they come.
import { useEffect, useReducer, useState } from 'preact/hooks'
import { Answer, type Question } from './answer'
import { listen } from './feed'
import { count, duration } from './format'
import { Long, Message, Turns, type Turn } from './message'
import { Section } from './page'
import { link } from './store'

interface Entry {
	at: number
	attempt: number
	phase?: { name: string; ended?: boolean; ms: number; exit?: string; fault?: string }
	call?: Told
	wait?: { for: string; call?: number; text: string; ms: number; ended?: boolean }
	output?: { source: string; text: string }
	ended?: string
}

interface Told {
	number: number
	ended?: boolean
	role?: string
	model?: string
	new?: Turn[]
	answer?: Turn
	ms?: number
	prompt?: number
	completion?: number
	finish?: string
	fault?: string
	note?: string
}

interface Piece {
	attempt: number
	call: number
	first?: boolean
	text?: string
	reasoning?: string
	tools?: string
	late?: boolean
	cut?: boolean
}

interface Phase {
	name: string
	at: number
	ended?: boolean
	ms: number
	exit?: string
	fault?: string
}

interface Wait {
	for: string
	text: string
	since: number
}

interface Call extends Told {
	at: number
	piece?: Piece
}

const maxLines = 500 // of the output of one source

// story is what the events of the newest attempt tell.
class Story {
	attempt = 0
	phases: Phase[] = []
	calls = new Map<number, Call>()
	waits = new Map<number, Wait>() // by the call; 0: of the rollout
	output = new Map<string, { lines: string[]; left: number }>() // by the source
	answered = 0 // when the last answer was given
	ended = ''

	add(e: Entry) {
		if (e.attempt > this.attempt) {
			Object.assign(this, new Story())
			this.attempt = e.attempt
		} else if (e.attempt < this.attempt && e.attempt > 0) {
			return
		}
		if (e.ended) {
			this.ended = e.ended
			this.waits.clear()
		}
		if (e.phase) {
			const open = this.phases.find((p) => p.name === e.phase!.name && !p.ended)
			if (open && e.phase.ended) Object.assign(open, e.phase)
			else this.phases.push({ ...e.phase, at: e.phase.ended ? e.at - e.phase.ms : e.at })
		}
		if (e.call) {
			const known = this.calls.get(e.call.number)
			const { new: added, ...rest } = e.call
			this.calls.set(e.call.number, { at: e.at, ...known, ...rest, new: known?.new ?? added, role: known?.role ?? e.call.role, model: known?.model ?? e.call.model })
			if (e.call.ended) {
				this.answered = e.at
				this.waits.delete(e.call.number)
				this.calls.get(e.call.number)!.piece = undefined
			}
		}
		if (e.wait) {
			const key = e.wait.call ?? 0
			if (e.wait.ended) this.waits.delete(key)
			else this.waits.set(key, { for: e.wait.for, text: e.wait.text, since: e.at - e.wait.ms })
		}
		if (e.output) {
			const of = this.output.get(e.output.source) ?? { lines: [], left: 0 }
			of.lines.push(e.output.text)
			if (of.lines.length > maxLines) {
				of.lines.shift()
				of.left++
			}
			this.output.set(e.output.source, of)
		}
	}

	piece(p: Piece) {
		const call = this.calls.get(p.call)
		if (p.attempt !== this.attempt || !call || call.ended) return
		const old = p.first ? undefined : call.piece
		call.piece = {
			...p,
			text: (old?.text ?? '') + (p.text ?? ''),
			reasoning: (old?.reasoning ?? '') + (p.reasoning ?? ''),
			tools: (old?.tools ?? '') + (p.tools ?? ''),
		}
	}
}

// useStory follows the events of a rollout.
function useStory(path: string): { story: Story; unheard: string; lost: boolean; error: string; asked: Question[] } {
	const [, again] = useReducer((n: number) => n + 1, 0)
	const [state] = useState({ story: new Story(), unheard: '', lost: false, error: '', asked: [] as Question[] })
	useEffect(() => {
		const shown = (take: (data: any) => void) => (data: any) => {
			take(data)
			again(0)
		}
		return listen(
			path,
			{
				begin: shown((begin: { unheard: string; lost: boolean }) => Object.assign(state, { story: new Story(), ...begin })),
				events: shown((list: Entry[]) => list.forEach((e) => state.story.add(e))),
				texts: shown((list: Piece[]) => list.forEach((p) => state.story.piece(p))),
				asked: shown((asked: Question[]) => (state.asked = asked)),
				trouble: shown((error: string) => (state.error = error)),
			},
			(now) => {
				if (now !== 'over') return
				state.error = 'The events of this rollout are not shown. Load the page again.'
				again(0)
			},
		)
	}, [path])
	return state
}

// useNow is the time, which goes on each second while something is open.
function useNow(runs: boolean): number {
	const [now, set] = useState(Date.now())
	useEffect(() => {
		if (!runs) return
		const timer = setInterval(() => set(Date.now()), 1000)
		return () => clearInterval(timer)
	}, [runs])
	return now
}

export function Live({ base, status, missing }: { base: string; status: string; missing?: string }) {
	const { story, unheard, lost, error, asked } = useStory(base + '/live')
	const runs = !story.ended && (status === 'running' || status === 'cancelling' || status === 'queued')
	const now = useNow(runs)
	return (
		<>
			{error && link.value !== 'over' ? <p class="alert" role="alert">{error}</p> : null}
			{runs ? <State story={story} status={status} now={now} asked={asked.map((q) => q.number)} /> : null}
			{unheard ? <p class="empty">{unheard}</p> : null}
			{runs && story.phases.length ? (
				<Section title="Phases">
					{story.phases.map((p, i) => (
						<p key={i} class="stage" data-open={!p.ended}>
							<span class="name">{p.name}</span> {p.ended ? duration(p.ms) : 'for ' + duration(Math.max(0, now - p.at))} <span class="exit">{p.exit}</span> {p.fault ? <span class="fault">{p.fault}</span> : null}
						</p>
					))}
				</Section>
			) : null}
			{story.calls.size ? (
				<Section title="Conversation">
					{lost ? <p class="cut">Earlier events are left out: they were too many.</p> : null}
					{[...story.calls.values()].map((c, i, all) => (
						<LiveCall key={c.number} c={c} above={all[i - 1]?.number} wait={story.waits.get(c.number)} now={now} runs={runs} />
					))}
				</Section>
			) : !runs && missing ? (
				<Section title="Conversation">
					<p class="empty">{missing}</p>
				</Section>
			) : null}
			{runs
				? asked.map((q) => <Answer key={q.key + q.gen} path={base} q={q} shown={story.calls.has(q.number)} />)
				: null}
			{story.output.size ? (
				<Section title="Output">
					{[...story.output].map(([source, { lines, left }]) => (
						<details key={source} open={source.startsWith('verify')} class="output">
							<summary>
								{source}, {count(lines.length + left)} lines
							</summary>
							<pre>{lines.join('\n')}</pre>
						</details>
					))}
				</Section>
			) : null}
		</>
	)
}

// State tells what the rollout does or waits for now.
function State({ story, status, now, asked }: { story: Story; status: string; now: number; asked: number[] }) {
	const lines: string[] = []
	for (const [call, w] of story.waits) lines.push((call ? `Call ${call}: ` : '') + w.text + (now - w.since >= 1000 ? ', for ' + duration(now - w.since) : ''))
	const open = [...story.calls.values()].filter((c) => !c.ended && !story.waits.has(c.number))
	for (const c of open) lines.push(`Call ${c.number}: ${asked.includes(c.number) ? 'waits for your answer' : 'the model generates its answer'}, for ${duration(Math.max(0, now - c.at))}`)
	const phase = story.phases.filter((p) => !p.ended).at(-1)
	if (lines.length === 0 && status === 'queued') lines.push('It waits in the queue for a worker')
	else if (lines.length === 0 && phase?.name === 'agent') lines.push('The agent works' + (story.answered ? ' since its last answer, for ' + duration(Math.max(0, now - story.answered)) : ''))
	else if (lines.length === 0 && phase) lines.push(phase.name)
	return (
		<ul class="state" aria-label="State">
			{lines.map((l) => (
				<li key={l}>{l}</li>
			))}
		</ul>
	)
}

function LiveCall({ c, above, wait, now, runs }: { c: Call; above?: number; wait?: Wait; now: number; runs: boolean }) {
	const p = c.piece
	return (
		<article id={'call-' + c.number} class="call" tabIndex={-1} aria-label={'Call ' + c.number} data-open={!c.ended}>
			<Turns turns={c.new ?? []} above={above} />
			<p class="about">
				<b>call {c.number}</b>
				{c.role ? ' · ' + c.role : ''}
				{c.model ? ' · ' + c.model : ''}
				{c.ended ? ' · answered in ' + duration(c.ms ?? 0) : runs ? ' · ' + (wait ? wait.text : 'generates') + ', for ' + duration(Math.max(0, now - c.at)) : ''}
				{c.prompt || c.completion ? ' · ' + count(c.prompt ?? 0) + ' + ' + count(c.completion ?? 0) + ' tokens' : ''}
				{c.finish ? ' · ' + c.finish : ''}
			</p>
			{c.note ? <p class="cut">{c.note}</p> : null}
			{c.fault ? <p class="fault">{c.fault}</p> : null}
			{c.answer ? <Message turn={c.answer} /> : null}
			{p ? (
				<div class="message assistant streamed" aria-label="Streamed text">
					<span class="role">assistant …{p.late ? ' (its beginning may be missing)' : ''}</span>
					{p.reasoning ? <pre class="weak">{p.reasoning}</pre> : null}
					{p.text ? <pre>{p.text}</pre> : null}
					{p.tools ? <Long text={p.tools} /> : null}
					{p.cut ? <p class="cut">The answer has more.</p> : null}
				</div>
			) : null}
		</article>
	)
}
