// The page of a group: its rollouts side by side.
import type { ComponentChildren } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { Rewards } from './charts'
import { count, duration, reward } from './format'
import { Away, awayFor, load } from './load'
import { Grid, Id, Link, Section, useLoaded, useTitle, Values } from './page'
import { rolloutPage, type Row } from './rows'
import { filters, home, progress } from './store'

interface Member extends Row {
	advantage: number | null
}

interface GroupOf {
	trainer: string
	group: string
	task?: string
	mean: number | null
	deviation: number | null
	members: Member[]
}

export function Group() {
	const { trainer = '', group = '' } = filters.value
	const [g, error] = useLoaded<GroupOf>('/api/group?' + new URLSearchParams({ trainer, group }), progress((r) => r.group === group && r.trainer === trainer))
	useTitle('Group ' + (g?.task ?? group))
	return (
		<main class="page" tabIndex={-1}>
			<p class="back">
				<Link to={home()}>← Rollouts</Link>
			</p>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{g ? <Page g={g} /> : error ? null : <p class="empty">Loading …</p>}
		</main>
	)
}

function Page({ g }: { g: GroupOf }) {
	const used = g.members.filter((m) => m.advantage !== null).length
	const facts: [string, ComponentChildren][] = [
		['Group', <Id text={g.group} />],
		['Trainer', g.trainer],
		['Rollouts', String(g.members.length)],
		['To train on', String(used)],
		['Mean of their rewards', reward(g.mean)],
		['Standard deviation', reward(g.deviation)],
	]
	return (
		<>
			<h1>{g.task ?? 'Group'}</h1>
			{g.members.length === 0 ? <p class="empty">No rollout of this group is known here.</p> : null}
			<Values values={facts} />
			{used > 1 && g.deviation === 0 ? <p class="notes">All rewards are the same, so the group trains nothing.</p> : null}
			<Rewards rewards={g.members.map((m) => m.reward)} mean={g.mean} />
			<Members g={g} />
		</>
	)
}

const why: Record<string, string> = {
	agent_timeout: 'the agent did not end in time',
	no_calls: 'the agent called no model',
	no_reward: 'the verifier gave no reward',
	infrastructure: 'the worker, the sandbox or the trainer failed',
	task: 'the task or the request is at fault',
	cancelled: 'it was cancelled',
}

function use(m: Member): string {
	if (!m.use) return ''
	if (m.use === 'train') return m.reward === null ? 'no reward to train on' : 'train'
	const reason = why[m.failure ?? ''] ?? m.failure
	return (m.use === 'mask' ? 'mask: ' : 'run again: ') + reason
}

function Members({ g }: { g: GroupOf }) {
	if (g.members.length === 0) return null
	const longest = Math.max(1, ...g.members.map((m) => m.completion))
	return (
		<Section title="Rollouts">
			<Grid name="Rollouts of the group" head={['Rollout', 'Status', 'Reward', 'Advantage', 'Calls', 'Tokens', 'Time', 'Versions', 'Use', 'Fault']}>
				{g.members.map((m) => (
					<tr key={m.id} data-status={m.status}>
						<th scope="row">
							<Link to={rolloutPage(m.id)} title={m.id}>
								{String(m.index)}
							</Link>
						</th>
						<td class="status">{m.status}</td>
						<td class="number">{m.reward === null ? 'unknown' : reward(m.reward)}</td>
						<td class="number advantage">{m.advantage === null ? '' : (m.advantage > 0 ? '+' : '') + m.advantage.toFixed(3)}</td>
						<td class="number">{m.calls ? count(m.calls) : ''}</td>
						<td class="number" title={`${m.prompt} + ${m.completion}`}>
							{m.completion ? count(m.completion) : ''}
							<span class="lane">
								<span class="bar" style={{ width: (100 * m.completion) / longest + '%' }} />
							</span>
						</td>
						<td class="number">{duration(m.ms)}</td>
						<td>{m.use ? <Versions key={m.id + m.status} id={m.id} /> : null}</td>
						<td class={'use-' + (m.use ?? '')}>{use(m)}</td>
						<td class="fault" title={m.text}>
							{m.fault ? <b>{m.fault}</b> : null} {m.text ? m.text.slice(0, 160) : ''}
						</td>
					</tr>
				))}
			</Grid>
		</Section>
	)
}

interface VersionsOf {
	versions: string[]
	missing?: string
}

// Transcripts are read one after the other, also for a large group.
let reading: Promise<unknown> = Promise.resolve()

function Versions({ id }: { id: string }) {
	const [v, set] = useState<VersionsOf | null>(null)
	useEffect(() => {
		let current = true
		reading = reading.then(async () => {
			while (current) {
				try {
					const got = await load<VersionsOf>('/api/rollouts/' + encodeURIComponent(id) + '/versions')
					if (current) set(got)
					return
				} catch (e) {
					if (current) set({ versions: [], missing: (e as Error).message })
					if (!(e instanceof Away)) return
					await new Promise((again) => setTimeout(again, awayFor))
				}
			}
		})
		return () => {
			current = false
		}
	}, [id])
	if (v === null) return <>…</>
	return <span title={v.missing}>{v.missing ? '-' : v.versions.join(', ')}</span>
}
