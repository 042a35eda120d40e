// The rollouts of this page, as the server tells of them.
import { batch, computed, signal } from '@preact/signals'
import { listen } from './feed'
import { first, load, shared } from './load'
import { compare, filtersOf, matcher, queryOf, tabs, type Filters, type Row } from './rows'

export const source = signal('')
export const jobs = signal(false) // there are pages of jobs
export const plays = signal(false) // rollouts can be run from the page /new
export const trouble = signal('')
// The connection to the console: 'live', 'lost' (the browser tries again), 'over' (this
// browser's session has ended), or 'shared' (a file, which needs none).
export const link = signal<'live' | 'lost' | 'over' | 'shared'>('lost')

const rows = new Map<string, Row>()
const version = signal(0) // changes with rows
const changes = new Map<string, number>() // the number of each row's last change
let changeCount = 0

// The address of a page is the URL's path. In a shared file it is behind the #.
const here = () => new URL(shared ? location.hash.slice(1) || first : location.pathname + location.search, 'http://here')
export const href = (to: string) => (shared ? '#' + to : to)

export const path = signal(here().pathname)
export const filters = signal<Filters>(filtersOf(here().search))

// home is the table with the filters that it had last, also after a reload of another page.
export const home = (): string => (path.value === '/' ? '/' + queryOf(filters.value) : (history.state?.home ?? '/'))

// go shows another page of this console.
export function go(to: string) {
	history.pushState({ home: home() }, '', href(to))
	read()
}

// follow opens a link in this page, unless the user wants another one.
export function follow(e: MouseEvent, to: string) {
	if (e.ctrlKey || e.metaKey || e.shiftKey || e.button !== 0) return
	e.preventDefault()
	go(to)
}

function read() {
	batch(() => {
		path.value = here().pathname
		filters.value = filtersOf(here().search)
	})
}
addEventListener('popstate', read)

// setFilters changes filters. The URL has them, so that it can be kept and sent.
export function setFilters(change: Filters, step = false) {
	const next = { ...filters.value, ...change }
	const url = href(path.value + queryOf(next))
	if (step) history.pushState(null, '', url)
	else history.replaceState(null, '', url)
	read()
}

// row returns the row of a rollout, if it is known.
export const row = (id: string): Row | undefined => (version.value, rows.get(id))

// progress of the rollouts that a test selects: it changes with them.
export function progress(test: (r: Row) => boolean): string {
	void version.value
	let count = 0
	let last = 0
	for (const [id, r] of rows) {
		if (!test(r)) continue
		count++
		last = Math.max(last, changes.get(id) ?? 0)
	}
	return count + '.' + last
}

// rewardsOf are the rewards of a job's rollouts that have ended; null: not known.
export function rewardsOf(job: string): (number | null)[] {
	void version.value
	return [...rows.values()].filter((r) => r.job === job && r.status !== 'open' && r.status !== 'queued' && r.status !== 'running').map((r) => r.reward)
}

// refused counts the answers of a trainer that workers refused, and all of its calls.
export function refused(trainer: string): { refused: number; calls: number } {
	void version.value
	const sum = { refused: 0, calls: 0 }
	for (const r of rows.values()) {
		if (r.trainer !== trainer) continue
		sum.refused += r.refused ?? 0
		sum.calls += r.calls
	}
	return sum
}

export interface Listed {
	rows: Row[]
	counts: Map<string, number> // by the tab
	values: Map<string, string[]> // of filters with choices
	known: number
}

export const listed = computed<Listed>(() => {
	void version.value
	const f = filters.value
	const test = matcher(f)
	const tab = tabs.find((t) => t.name === (f.status ?? '')) ?? tabs[0]!
	const byStatus = new Map<string, number>()
	const sets = { trainer: new Set<string>(), agent: new Set<string>(), worker: new Set<string>(), fault: new Set<string>(), job: new Set<string>() }
	const out: Row[] = []
	let all = 0
	for (const r of rows.values()) {
		for (const [name, set] of Object.entries(sets)) {
			const v = r[name as keyof typeof sets]
			if (v) set.add(v)
		}
		if (!test(r)) continue
		all++
		byStatus.set(r.status, (byStatus.get(r.status) ?? 0) + 1)
		if (tab.statuses.length === 0 || tab.statuses.includes(r.status)) out.push(r)
	}
	out.sort(compare(f.sort ?? '-started'))
	const counts = new Map<string, number>()
	for (const t of tabs) counts.set(t.name, t.statuses.length === 0 ? all : t.statuses.reduce((n, s) => n + (byStatus.get(s) ?? 0), 0))
	const values = new Map(Object.entries(sets).map(([name, set]) => [name, [...set].sort()]))
	return { rows: out, counts, values, known: rows.size }
})

// Many changes are shown together, so that a large table is not sorted for each.
let planned = false
function changed() {
	if (planned) return
	planned = true
	setTimeout(
		() => {
			planned = false
			version.value++
		},
		rows.size > 20_000 ? 500 : 50,
	)
}

// start follows the rollouts, or reads those of a shared file.
export function start() {
	if (shared) {
		link.value = 'shared'
		load<{ source: string; rows: Row[] }>('/api/rollouts').then(
			(all) => {
				source.value = all.source
				jobs.value = true
				for (const r of all.rows) rows.set(r.id, r)
				changed()
			},
			(e: Error) => (trouble.value = e.message),
		)
		return
	}
	listen(
		'/api/rollouts',
		{
			begin: (begin) => {
				rows.clear()
				changes.clear()
				source.value = begin.source
				jobs.value = begin.jobs
				plays.value = begin.plays
				changed()
			},
			rows: (list: Row[]) => {
				for (const r of list) {
					for (const id of r.replaces ?? []) rows.delete(id)
					rows.set(r.id, r)
					changes.set(r.id, ++changeCount)
				}
				changed()
			},
			trouble: (text: string) => (trouble.value = text),
		},
		(state) => (link.value = state),
	)
}
