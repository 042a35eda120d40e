// The selected rollouts of the table, and what can be done with them.
import { signal } from '@preact/signals'
import { ask } from './confirm'
import { plural } from './format'
import { act, rights } from './rights'
import type { Row } from './rows'

export const picked = signal<ReadonlySet<string>>(new Set())

export function toggle(id: string) {
	const next = new Set(picked.value)
	if (!next.delete(id)) next.add(id)
	picked.value = next
}

// pickable tells whether rows can be selected: there is something to do with them.
export const pickable = (): boolean => rights.value?.role === 'operator' && (!rights.value.cancel || !rights.value.retry)

const ends = (r: Pick<Row, 'status'>) => r.status === 'queued' || r.status === 'running'
// A trial of a job is run again by its job.
const ended = (r: Pick<Row, 'status' | 'job'>) => !r.job && ['done', 'failed', 'dead', 'cancelled'].includes(r.status)

// RolloutActions act on the rollout of a page.
export function RolloutActions({ d }: { d: Pick<Row, 'id' | 'status' | 'job'> }) {
	const r = rights.value
	if (!r?.system || r.role !== 'operator') return null
	const offer = (what: 'cancel' | 'retry', verb: string, done: string) =>
		r[what] ? null : (
			<button class={what} onClick={() => ask({ text: verb + ' ' + d.id + '?', yes: verb, does: () => act(what, 'ids', [d.id]), done: (o) => done + ' ' + plural(o.done, 'rollout') })}>
				{verb}
			</button>
		)
	return (
		<p class="actions" role="group" aria-label="Actions">
			{ends(d) ? offer('cancel', 'Cancel', 'Asked the workers to end') : null}
			{ended(d) ? offer('retry', 'Retry', 'Submitted again') : null}
		</p>
	)
}

// Actions act on the selected ones of the rows, or on all of them if none is selected.
export function Actions({ rows }: { rows: Row[] }) {
	const r = rights.value
	if (!r?.system) return null
	if (!pickable()) return <p class="actions about">{r.cancel ? 'Rollouts cannot be cancelled or retried here: ' + r.cancel : ''}</p>
	const chosen = rows.filter((row) => picked.value.has(row.id))
	const all = chosen.length === 0
	const from = all ? rows : chosen
	const offer = (what: 'cancel' | 'retry', verb: string, list: string[], done: string) => {
		if (r[what]) return <span class="about">{verb} is not possible here: {r[what]}</span>
		if (list.length === 0) return null
		const text = verb + ' ' + plural(list.length, 'rollout')
		return (
			<button
				class={what}
				onClick={() =>
					ask({
						text: text + (all ? ', all that match the filters?' : '?'),
						yes: text,
						does: () => {
							picked.value = new Set()
							return act(what, 'ids', list)
						},
						done: (o) => done + ' ' + plural(o.done, 'rollout'),
					})
				}
			>
				{verb} {all ? 'all ' : ''}
				{list.length}
			</button>
		)
	}
	const ids = (test: (r: Row) => boolean) => from.filter(test).map((r) => r.id)
	return (
		<div class="actions" role="group" aria-label="Actions">
			<span class="about">{all ? plural(rows.length, 'rollout') + (rows.length === 1 ? ' matches' : ' match') : chosen.length + ' selected'}</span>
			{offer('cancel', 'Cancel', ids(ends), 'Asked the workers to end')}
			{offer('retry', 'Retry', ids(ended), 'Submitted again')}
			{all ? null : <button onClick={() => (picked.value = new Set())}>Select none</button>}
		</div>
	)
}
