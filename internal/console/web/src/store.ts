// The rollouts of this page, as the server tells of them.
import { batch, computed, signal } from '@preact/signals'
import { compare, filtersOf, matcher, queryOf, tabs, type Filters, type Row } from './rows'

export const source = signal('')
export const trouble = signal('')
// The connection to the console: 'live', 'lost' (the browser tries again), or 'over'
// (this browser's session has ended).
export const link = signal<'live' | 'lost' | 'over'>('lost')

const rows = new Map<string, Row>()
const version = signal(0) // changes with rows

export const path = signal(location.pathname)
export const filters = signal<Filters>(filtersOf(location.search))

// go shows another page of this console.
export function go(to: string) {
	history.pushState(null, '', to)
	read()
}

function read() {
	batch(() => {
		path.value = location.pathname
		filters.value = filtersOf(location.search)
	})
}
addEventListener('popstate', read)

// setFilters changes filters. The URL has them, so that it can be kept and sent.
export function setFilters(change: Filters, step = false) {
	const next = { ...filters.value, ...change }
	const url = location.pathname + queryOf(next)
	if (step) history.pushState(null, '', url)
	else history.replaceState(null, '', url)
	read()
}

// row returns the row of a rollout, if it is known.
export const row = (id: string): Row | undefined => (version.value, rows.get(id))

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
	const sets = { trainer: new Set<string>(), agent: new Set<string>(), worker: new Set<string>(), fault: new Set<string>() }
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

export function connect() {
	const events = new EventSource('/api/rollouts')
	events.onopen = () => (link.value = 'live')
	events.onerror = () => (link.value = events.readyState === EventSource.CLOSED ? 'over' : 'lost')
	events.addEventListener('begin', (e) => {
		rows.clear()
		source.value = JSON.parse(e.data).source
		changed()
	})
	events.addEventListener('rows', (e) => {
		for (const r of JSON.parse(e.data) as Row[]) rows.set(r.id, r)
		changed()
	})
	events.addEventListener('trouble', (e) => (trouble.value = JSON.parse(e.data)))
}
