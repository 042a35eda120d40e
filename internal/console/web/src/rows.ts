// The rollouts as the server sends them, and the rules that select and sort them.

export interface Row {
	id: string
	trainer: string
	group?: string
	index: number
	task?: string
	agent?: string
	worker?: string
	status: string
	reward: number | null
	fault?: string
	text?: string
	attempt?: number
	calls: number
	prompt: number
	completion: number
	refused?: number // answers
	started?: number
	ms?: number
	job?: string
	trial?: string
	failure?: string
	use?: string
	labels?: Record<string, string>
	replaces?: string[]
}

// A tab selects rollouts by their status.
export const tabs: { name: string; title: string; statuses: string[] }[] = [
	{ name: '', title: 'All', statuses: [] },
	{ name: 'queued', title: 'Queued', statuses: ['queued'] },
	{ name: 'running', title: 'Running', statuses: ['running', 'cancelling'] },
	{ name: 'open', title: 'Open', statuses: ['open'] },
	{ name: 'done', title: 'Done', statuses: ['done'] },
	{ name: 'failed', title: 'Failed', statuses: ['failed', 'dead'] },
	{ name: 'cancelled', title: 'Cancelled', statuses: ['cancelled'] },
]

// Filters by the name of their URL parameter. Those of choices need the whole value, the
// others a part of it.
export const choices = ['trainer', 'agent', 'worker', 'fault', 'job'] as const
export const parts = ['task', 'group'] as const

export type Filters = Record<string, string>

export function filtersOf(query: string): Filters {
	const out: Filters = {}
	new URLSearchParams(query).forEach((value, name) => {
		if (value !== '') out[name] = value
	})
	return out
}

export function queryOf(filters: Filters): string {
	const q = new URLSearchParams()
	for (const [name, value] of Object.entries(filters)) if (value !== '') q.set(name, value)
	const text = q.toString()
	return text === '' ? '' : '?' + text
}

const lower = (s: string | undefined) => (s ?? '').toLowerCase()

// rewardTest reads a condition such as ">=0.5", "1" or "none"; null: it is not valid.
export function rewardTest(text: string): ((r: number | null) => boolean) | null {
	const t = text.replace(/\s/g, '')
	if (t === 'none') return (r) => r === null
	const m = /^(>=|<=|>|<|=|!=)?(-?[0-9]*\.?[0-9]+)$/.exec(t)
	if (!m) return null
	const n = Number(m[2])
	const compare: Record<string, (r: number) => boolean> = {
		'>=': (r) => r >= n,
		'<=': (r) => r <= n,
		'>': (r) => r > n,
		'<': (r) => r < n,
		'!=': (r) => r !== n,
		'=': (r) => r === n,
	}
	const f = compare[m[1] ?? '=']!
	return (r) => r !== null && f(r)
}

// matcher returns the test of all filters but the tab.
export function matcher(f: Filters): (r: Row) => boolean {
	const tests: ((r: Row) => boolean)[] = []
	for (const name of choices) {
		const want = f[name]
		if (want) tests.push((r) => r[name] === want)
	}
	for (const name of parts) {
		const want = lower(f[name])
		if (want) tests.push((r) => lower(r[name]).includes(want))
	}
	if (f.reward) {
		const test = rewardTest(f.reward)
		if (test) tests.push((r) => test(r.reward))
	}
	const text = lower(f.text)
	if (text) {
		const has = (s: string | undefined) => lower(s).includes(text)
		tests.push((r) => has(r.id) || has(r.task) || has(r.text) || has(r.trial) || has(r.job) || Object.entries(r.labels ?? {}).some(([k, v]) => has(k + '=' + v)))
	}
	return (r) => tests.every((t) => t(r))
}

// wrongFilters tells what filters of the address are not valid, and what is.
export function wrongFilters(f: Filters): string[] {
	const out: string[] = []
	if (f.reward && !rewardTest(f.reward)) out.push(`reward ${f.reward}: want a number with or without a comparison, such as 1, >=0.5 or !=0, or none`)
	if (f.status && !tabs.some((t) => t.name === f.status)) out.push(`status ${f.status}: want one of ${tabs.flatMap((t) => t.name || []).join(', ')}`)
	if (f.sort && !columns.includes(f.sort.replace(/^-/, '') as Column)) out.push(`sort ${f.sort}: want one of ${columns.join(', ')}, with a - before it to begin with the largest`)
	for (const name of Object.keys(f)) {
		if (!['text', 'reward', 'status', 'sort', ...choices, ...parts].includes(name)) out.push(`${name}: there is no such filter; want text, reward, status, sort, ${[...choices, ...parts].join(', ')}`)
	}
	return out
}

export type Column = keyof Row

// columns are those of the table.
export const columns: Column[] = ['status', 'task', 'agent', 'reward', 'fault', 'calls', 'completion', 'ms', 'started', 'worker', 'group', 'id']

// compare orders rows by a column, downwards with a minus before its name; rows without
// a value are last.
export function compare(sort: string): (a: Row, b: Row) => number {
	const down = sort.startsWith('-')
	const by = (down ? sort.slice(1) : sort) as Column
	const sign = down ? -1 : 1
	return (a, b) => {
		const x = a[by]
		const y = b[by]
		const none = Number(x === undefined || x === null) - Number(y === undefined || y === null)
		if (none !== 0) return none
		if (x !== y && x !== undefined && y !== undefined && x !== null && y !== null) return x < y ? -sign : sign
		return a.id < b.id ? -1 : a.id > b.id ? 1 : 0
	}
}

// The addresses of pages.
export const rolloutPage = (id: string) => '/rollout/' + encodeURIComponent(id)
export const groupPage = (r: { trainer: string; group?: string }) => (r.group ? '/group?' + new URLSearchParams({ trainer: r.trainer, group: r.group }) : '')
export const jobPage = (job: string) => '/job?' + new URLSearchParams({ job })
export const comparePage = (a: string, b: string) => '/compare?' + new URLSearchParams({ a, b })
export const tablePage = (f: Filters) => '/' + queryOf(f)
