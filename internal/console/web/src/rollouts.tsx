// The page with the table of rollouts.
import { signal } from '@preact/signals'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { count, duration, reward, time } from './format'
import { presses, useKeys } from './keys'
import { Link, useTitle } from './page'
import { choices, groupPage, parts, rewardTest, rolloutPage, tabs, wrongFilters, type Row } from './rows'
import { Actions, pickable, picked, toggle } from './selection'
import { filters, go, listed, plays, setFilters, source } from './store'
import { useRows } from './virtual'

const columns: { by: keyof Row; title: string; kind?: string; cell: (r: Row) => string }[] = [
	{ by: 'status', title: 'Status', cell: (r) => r.status },
	{ by: 'task', title: 'Task', cell: (r) => r.task ?? '' },
	{ by: 'agent', title: 'Agent', cell: (r) => r.agent ?? '' },
	{ by: 'reward', title: 'Reward', kind: 'number', cell: (r) => reward(r.reward) },
	{ by: 'fault', title: 'Fault', cell: (r) => r.fault ?? '' },
	{ by: 'calls', title: 'Calls', kind: 'number', cell: (r) => (r.calls ? count(r.calls) : '') },
	{ by: 'completion', title: 'Tokens', kind: 'number', cell: (r) => (r.completion ? count(r.completion) : '') },
	{ by: 'ms', title: 'Time', kind: 'number', cell: (r) => duration(r.ms) },
	{ by: 'started', title: 'Started', kind: 'number', cell: (r) => time(r.started) },
	{ by: 'worker', title: 'Worker', cell: (r) => r.worker ?? '' },
	{ by: 'group', title: 'Group', cell: (r) => (r.group ? r.group.slice(-8) + ' · ' + r.index : '') },
	{ by: 'id', title: 'Rollout', cell: (r) => r.id },
]

const letter = 8.8 // width of a character in pixels, mostly less
const most = 22 // characters of a column without more room
const looked = 300 // rows whose cells decide the widths

// widthsOf are the widths of the columns: each has that of its longest cell, and less only
// for a long one. The room that is left goes to texts.
function widthsOf(rows: Row[], picks: boolean): { '--columns': string; '--least': string } {
	let least = picks ? 28 : 0
	const tracks = picks ? ['28px'] : []
	for (const c of columns) {
		let longest = c.title.length + 2
		for (const r of rows.slice(0, looked)) longest = Math.max(longest, c.cell(r).length)
		const px = Math.ceil(Math.min(longest, most) * letter + 12)
		least += px
		tracks.push(c.kind === 'number' ? px + 'px' : `minmax(${px}px, ${longest}fr)`)
	}
	return { '--columns': tracks.join(' '), '--least': least + 'px' }
}

const narrow = matchMedia('(max-width: 760px)')

function useNarrow(): boolean {
	const [is, set] = useState(narrow.matches)
	useEffect(() => {
		const on = () => set(narrow.matches)
		narrow.addEventListener('change', on)
		return () => narrow.removeEventListener('change', on)
	}, [])
	return is
}

export function Rollouts() {
	const f = filters.value
	const { rows, counts, values, known } = listed.value
	useTitle(source.value ? 'Rollouts of ' + source.value : 'Rollouts')
	return (
		<main>
			<nav class="tabs" aria-label="Status">
				{tabs.map((t) => (
					<button
						key={t.name}
						aria-pressed={(f.status ?? '') === t.name}
						hidden={t.name !== '' && !counts.get(t.name) && (f.status ?? '') !== t.name}
						onClick={() => setFilters({ status: t.name }, true)}
					>
						{t.title} <span class="count">{counts.get(t.name)}</span>
					</button>
				))}
			</nav>
			<Filters values={values} />
			<Actions rows={rows} />
			<Table rows={rows} known={known} />
		</main>
	)
}

function Filters({ values }: { values: Map<string, string[]> }) {
	const f = filters.value
	const [open, setOpen] = useState(false)
	const set = (name: string) => (e: Event) => setFilters({ [name]: (e.target as HTMLInputElement).value })
	const wrong = wrongFilters(f)
	const used = [...choices, ...parts, 'reward'].filter((name) => f[name]).length
	return (
		<form class="filters" role="search" onSubmit={(e) => e.preventDefault()}>
			<input id="text" type="search" aria-label="Text" placeholder="Text (press /)" value={f.text ?? ''} onInput={set('text')} />
			<button type="button" class="more" aria-expanded={open} onClick={() => setOpen(!open)}>
				Filters{used ? ' · ' + used : ''}
			</button>
			<div class={open ? 'fields open' : 'fields'}>
				{choices.map((name) => name === 'job' && !values.get(name)?.length && !f[name] ? null : (
					<label key={name}>
						{name}
						<select name={name} value={f[name] ?? ''} onChange={set(name)}>
							<option value="">any</option>
							{[...new Set([...(values.get(name) ?? []), ...(f[name] ? [f[name]!] : [])])].map((v) => (
								<option key={v} value={v}>
									{v}
								</option>
							))}
						</select>
					</label>
				))}
				{parts.map((name) => (
					<label key={name}>
						{name}
						<input name={name} value={f[name] ?? ''} onInput={set(name)} />
					</label>
				))}
				<label>
					reward
					<input name="reward" placeholder=">=0.5, none" value={f.reward ?? ''} aria-invalid={!!f.reward && !rewardTest(f.reward)} onInput={set('reward')} />
				</label>
				{used || f.text ? (
					<button type="button" onClick={() => setFilters({ text: '', reward: '', task: '', group: '', trainer: '', agent: '', worker: '', fault: '', job: '' }, true)}>
						Clear
					</button>
				) : null}
			</div>
			{wrong.map((w) => (
				<p key={w} class="fault" role="alert">
					{w}
				</p>
			))}
		</form>
	)
}

const current = signal('') // the rollout that the keyboard is at, also while its page is open

function Table({ rows, known }: { rows: Row[]; known: number }) {
	const scroll = useRef<HTMLDivElement>(null)
	const at = current.value
	const setAt = (id: string) => (current.value = id)
	const cards = useNarrow()
	const picks = pickable()
	const list = useRows(scroll, rows.length, cards ? 64 : 32)
	const widths = useMemo(() => widthsOf(rows, picks), [rows, picks])
	const sort = filters.value.sort ?? '-started'
	const open = (r: Row) => go(rolloutPage(r.id))
	const move = (by: number) => {
		const now = rows.findIndex((r) => r.id === at)
		const next = Math.max(0, Math.min(rows.length - 1, now < 0 ? 0 : now + by))
		const r = rows[next]
		if (!r) return
		setAt(r.id)
		list.scrollToIndex(next, { align: 'auto' })
	}
	const onKey = (e: KeyboardEvent) => {
		const page = Math.max(1, Math.floor((scroll.current?.clientHeight ?? 0) / 32) - 1)
		const steps: Record<string, number> = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length }
		const step = steps[e.key]
		if (step !== undefined) {
			move(step)
			scroll.current?.focus() // a button that had the focus gets no Enter
		}
		else if (e.key === 'Enter' || e.key === 'g') {
			const r = rows.find((r) => r.id === at)
			if (e.key === 'Enter' && presses(e)) return
			if (r && e.key === 'Enter') open(r)
			else if (r?.group) go(groupPage(r))
		} else if (e.key === 'x' && picks && at) toggle(at)
		else return
		e.preventDefault()
	}
	useKeys(onKey)
	useEffect(() => { // the table is back, at the rollout that was read
		const now = rows.findIndex((r) => r.id === at)
		if (now >= 0) list.scrollToIndex(now, { align: 'auto' })
	}, [])
	return (
		<div
			class={picks ? 'table picks' : 'table'}
			ref={scroll}
			style={widths}
			tabIndex={0}
			role="grid"
			aria-label="Rollouts"
			aria-rowcount={rows.length + 1}
			aria-activedescendant={at ? 'r-' + at : undefined}
		>
			<div class="row head" role="row" aria-rowindex={1}>
				{picks ? <div role="columnheader" class="pick" aria-label="Selected" /> : null}
				{columns.map((c) => (
					<div key={c.by} role="columnheader" class={c.by + ' ' + (c.kind ?? '')} aria-sort={sort === c.by ? 'ascending' : sort === '-' + c.by ? 'descending' : 'none'}>
						<button onClick={() => setFilters({ sort: sort === '-' + c.by ? c.by : '-' + c.by })}>
							{c.title}
							{sort === c.by ? ' ↑' : sort === '-' + c.by ? ' ↓' : ''}
						</button>
					</div>
				))}
			</div>
			<div class="body" style={{ height: list.getTotalSize() + 'px' }}>
				{list.getVirtualItems().map((v) => {
					const r = rows[v.index]
					if (!r) return null
					return (
						<div
							key={r.id}
							id={'r-' + r.id}
							class="row"
							role="row"
							aria-rowindex={v.index + 2}
							aria-selected={r.id === at}
							data-status={r.status}
							style={{ transform: `translateY(${v.start}px)` }}
							title={r.text}
							onClick={() => setAt(r.id)}
							onDblClick={() => open(r)}
						>
							{picks ? (
								<span role="gridcell" class="pick">
									<input type="checkbox" tabIndex={-1} aria-label={'Select ' + r.id} checked={picked.value.has(r.id)} onChange={() => toggle(r.id)} />
								</span>
							) : null}
							{columns.map((c) => (
								<span key={c.by} role="gridcell" class={c.by + ' ' + (c.kind ?? '')}>
									{pageOf(c.by, r) ? (
										<Link to={pageOf(c.by, r)} tabIndex={-1}>
											{c.cell(r)}
										</Link>
									) : (
										c.cell(r)
									)}
								</span>
							))}
						</div>
					)
				})}
			</div>
			{rows.length === 0 ? (
				<p class="empty">
					{known > 0 ? 'No rollout matches the filters.' : 'There are no rollouts yet. They appear here as soon as one is submitted.'} {known === 0 && plays.value ? <Link to="/new">Run a rollout</Link> : null}
				</p>
			) : null}
		</div>
	)
}

// pageOf is the page to which a cell leads; empty: none.
const pageOf = (by: keyof Row, r: Row) => (by === 'id' || by === 'task' ? rolloutPage(r.id) : by === 'group' ? groupPage(r) : '')
