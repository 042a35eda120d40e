// The pages about a running system: workers, queue and trainers.
import { Fragment } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import { ask } from './confirm'
import { duration, plural, time } from './format'
import { load, Over } from './load'
import { Grid, Id, Link, Section, useLoaded, useTitle, Values } from './page'
import { act, rights } from './rights'
import { rolloutPage } from './rows'
import { refused } from './store'

// useFresh loads a value every two seconds while the page is seen. The last one stays
// after an error.
function useFresh<T>(path: string): { value: T | null; error: string; again: () => void } {
	const [value, set] = useState<T | null>(null)
	const [error, setError] = useState('')
	const [turn, setTurn] = useState(0)
	useEffect(() => {
		let current = true
		let timer = 0
		const next = async () => {
			if (document.visibilityState !== 'hidden') {
				try {
					const got = await load<T>(path)
					if (!current) return
					set(got)
					setError('')
				} catch (e) {
					if (!current) return
					setError(e instanceof Over ? '' : (e as Error).message)
				}
			}
			timer = window.setTimeout(next, 2000)
		}
		next()
		return () => {
			current = false
			clearTimeout(timer)
		}
	}, [path, turn])
	return { value, error, again: () => setTurn(turn + 1) }
}

function Frame({ title, error, children }: { title: string; error: string; children: ComponentChildren }) {
	const r = rights.value
	useTitle(title)
	return (
		<main class="page" tabIndex={-1}>
			<h1>{title}</h1>
			{r?.read ? <p class="empty">{r.read}</p> : (
				<>
					{error ? <p class="alert" role="alert">{error}</p> : null}
					{children}
				</>
			)}
		</main>
	)
}

const ago = (at: number): string => duration(Math.max(0, Math.round((Date.now() - at) / 1000) * 1000)) + ' ago'
const bytes = (n: number): string => (n < 1 << 20 ? Math.ceil(n / 1024) + ' KiB' : n < 2 ** 30 ? (n / 2 ** 20).toFixed(1) + ' MiB' : (n / 2 ** 30).toFixed(1) + ' GiB')

interface Worker {
	name: string
	instance: string
	version?: string
	slots: number
	used: number
	draining: boolean
	full?: string
	running: string[]
	backends: string[]
	agents: string[]
	networks: string[]
	images: string[]
	upstreams: string[]
	limits: string[]
	lacks: { trainer: string; lane: string; waiting: number; why: string }[]
	load?: { cpus: number; load: number; memory: number; free: number; worker: number }
}

export function Workers() {
	const { value, error } = useFresh<Worker[]>('/api/workers')
	return (
		<Frame title="Workers" error={error}>
			{value === null ? error ? null : <p class="empty">Loading …</p> : value.length === 0 ? <p class="empty">No worker has announced itself in the last 40 s.</p> : null}
			{value?.map((w) => <OneWorker key={w.name + w.instance} w={w} />)}
		</Frame>
	)
}

function OneWorker({ w }: { w: Worker }) {
	const lists: [string, string[]][] = [
		['Sandboxes', w.backends],
		['Networks', w.networks],
		['Upstreams', w.upstreams],
		['Limits of a rollout', w.limits],
		['Agents', w.agents],
		['Images', w.images],
	]
	const [state, told] = w.draining ? ['draining', 'draining: it takes no new rollouts'] : w.full ? ['full', 'full: ' + w.full] : ['ready', 'ready']
	return (
		<section class="card worker" aria-label={'Worker ' + w.name} data-state={state}>
			<h2>
				<b>{w.name}</b> <span class="state">{told}</span> {w.version ? <small>{w.version}</small> : null}
			</h2>
			<p class="slots">
				<meter min={0} max={w.slots} value={w.used} aria-label="Slots in use" /> {w.used} of {plural(w.slots, 'slot')} used, {Math.max(0, w.slots - w.used)} free
			</p>
			{w.load ? <Busy load={w.load} /> : null}
			<Values values={lists.map(([name, list]) => [name, list.length > 8 ? <More list={list} /> : list.join(', ')])} />
			{w.lacks.length ? (
				<ul class="notes">
					{w.lacks.map((l, i) => (
						<li key={i}>
							{plural(l.waiting, 'parked request')} of {l.trainer} ({l.lane}): {l.why}
						</li>
					))}
				</ul>
			) : null}
			{w.running.length ? (
				<details>
					<summary>{plural(w.used, 'rollout')}</summary>
					<ul class="files">
						{w.running.map((id) => (
							<li key={id}>
								<Link to={rolloutPage(id)}>
									<Id text={id} />
								</Link>
							</li>
						))}
					</ul>
				</details>
			) : null}
		</section>
	)
}

// Busy shows the load and the memory of a worker's host, as far as they are known.
function Busy({ load: l }: { load: NonNullable<Worker['load']> }) {
	return (
		<>
			{l.cpus ? (
				<p class="busy">
					<meter min={0} max={l.cpus} value={Math.min(l.load, l.cpus)} aria-label="Load of the host" /> load {l.load.toFixed(1)} on {plural(l.cpus, 'CPU')}
				</p>
			) : null}
			{l.memory ? (
				<p class="busy">
					<meter min={0} max={l.memory} value={l.memory - l.free} aria-label="Memory of the host in use" /> {bytes(l.memory - l.free)} of {bytes(l.memory)} of the host's memory used{l.worker ? ', ' + bytes(l.worker) + ' by the worker itself' : ''}
				</p>
			) : null}
		</>
	)
}

function More({ list }: { list: string[] }) {
	return (
		<details>
			<summary>{list.length}</summary>
			{list.join(', ')}
		</details>
	)
}

interface Lane {
	trainer: string
	lane: string
	queued: number
	taken: number
	oldest?: number
	ageless?: boolean
	delayed: number
	unfit: number
}

interface QueueOf {
	lanes: Lane[]
	parked: { trainer: string; lane: string; waiting: number; needs: string; reasons: { worker: string; why: string }[]; able: string[] }[]
	dead: number
}

export function Queue() {
	const { value, error } = useFresh<QueueOf>('/api/queue')
	const lanes = value?.lanes.filter((l) => l.queued || l.taken || l.delayed || l.unfit) ?? []
	return (
		<Frame title="Queue" error={error}>
			{value === null && !error ? <p class="empty">Loading …</p> : null}
			{value ? (
				<>
					<Section title="Lanes">
						{lanes.length === 0 ? (
							<p class="empty">All queues are empty.</p>
						) : (
							<Grid name="Lanes" head={['Trainer', 'Lane', 'Waiting', 'Oldest', 'Taken', 'Delayed', 'Parked']}>
								{lanes.map((l) => (
									<tr key={l.trainer + '.' + l.lane}>
										<td>{l.trainer || '(plain lane)'}</td>
										<td>{l.lane}</td>
										<td class="number">{l.queued}</td>
										<td class="number">{l.ageless ? 'not known' : l.oldest ? ago(l.oldest) : ''}</td>
										<td class="number">{l.taken}</td>
										<td class="number">{l.delayed}</td>
										<td class="number">{l.unfit}</td>
									</tr>
								))}
							</Grid>
						)}
					</Section>
					{value.parked.length ? (
						<Section title="Parked requests">
							{value.parked.map((p, i) => (
								<div class="card parked" key={i}>
									<p>
										{plural(p.waiting, 'request')} of {p.trainer} ({p.lane}): {p.needs}
									</p>
									<ul class="notes">
										{p.reasons.map((r) => (
											<li key={r.worker}>
												{r.worker}: {r.why}
											</li>
										))}
										{p.able.length ? <li>can run them: {p.able.join(', ')}</li> : null}
										{p.reasons.length + p.able.length === 0 ? <li>there is no worker</li> : null}
									</ul>
								</div>
							))}
						</Section>
					) : null}
					<Dead count={value.dead} />
				</>
			) : null}
		</Frame>
	)
}

interface Letter {
	seq: number
	reason: string
	why: string
	subject: string
	size: number
	body?: string
	cut?: number
	form?: string
	error?: string
}

function Dead({ count }: { count: number }) {
	return (
		<Section title="Dead requests">
			{count === 0 ? <p class="empty">No worker has found a request that it cannot read.</p> : <Letters count={count} />}
		</Section>
	)
}

function Letters({ count }: { count: number }) {
	const { value, error, again } = useFresh<Letter[]>('/api/dead')
	const [picked, pick] = useState<Set<number>>(new Set())
	const [open, setOpen] = useState(0)
	const list = value ?? []
	const chosen = list.filter((l) => picked.has(l.seq)).map((l) => l.seq)
	const why = rights.value?.requeue ?? ''
	const may = rights.value !== null && !why
	const toggle = (seq: number) => {
		const next = new Set(picked)
		if (!next.delete(seq)) next.add(seq)
		pick(next)
	}
	const requeue = () =>
		ask({
			text: 'Put ' + plural(chosen.length, 'dead request') + ' back into the queue?',
			yes: 'Requeue ' + plural(chosen.length, 'request'),
			does: async () => {
				const o = await act('requeue', 'seqs', chosen)
				pick(new Set())
				again()
				return o
			},
			done: (o) => 'Requeued ' + plural(o.done, 'dead request'),
		})
	return (
		<>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{may ? (
				<p class="actions">
					<button onClick={() => pick(new Set(chosen.length === list.length ? [] : list.map((l) => l.seq)))}>{chosen.length === list.length ? 'Select none' : 'Select all ' + list.length}</button>{' '}
					<button class="requeue" disabled={chosen.length === 0} onClick={requeue}>
						Requeue {chosen.length || ''}
					</button>
				</p>
			) : why ? (
				<p class="about">They cannot be requeued here: {why}</p>
			) : null}
			{count > list.length && value ? <p class="about">The newest {list.length} of {count} are shown.</p> : null}
			<Grid name="Dead requests" head={[...(may ? [''] : []), 'Number', 'Reason', 'Bytes', 'Came on', 'Why']}>
				{list.map((l) => (
					<Fragment key={l.seq}>
						<tr class="letter" data-seq={l.seq}>
							{may ? (
								<td>
									<input type="checkbox" aria-label={'Select ' + l.seq} checked={picked.has(l.seq)} onChange={() => toggle(l.seq)} />
								</td>
							) : null}
							<td>
								<button class="open" aria-expanded={open === l.seq} onClick={() => setOpen(open === l.seq ? 0 : l.seq)}>
									{l.seq}
								</button>
							</td>
							<td>{l.reason}</td>
							<td class="number">{l.size}</td>
							<td>{l.subject}</td>
							<td>{l.why}</td>
						</tr>
						{open === l.seq ? (
							<tr>
								<td colSpan={may ? 6 : 5}>
									<Body seq={l.seq} />
								</td>
							</tr>
						) : null}
					</Fragment>
				))}
			</Grid>
		</>
	)
}

function Body({ seq }: { seq: number }) {
	const [l, error] = useLoaded<Letter>('/api/dead/' + seq, '')
	if (error) return <p class="alert" role="alert">{error}</p>
	if (!l) return <p class="empty">Loading …</p>
	return (
		<div class="letterbody">
			{l.error ? <p class="about">{l.error}</p> : null}
			<pre>{l.body}</pre>
			{l.cut ? <p class="cut">{l.cut} bytes more</p> : null}
		</div>
	)
}

interface Trainer {
	name: string
	weight: number
	bounds: { name: string; unit: string; used: number; limit: number }[]
	processes: { shard: string; name: string; since?: number; heard: number }[]
	hold?: { all: boolean; ids: string[]; count: number; heard: number }
}

export function Trainers() {
	const { value, error } = useFresh<Trainer[]>('/api/trainers')
	return (
		<Frame title="Trainers" error={error}>
			{value === null ? error ? null : <p class="empty">Loading …</p> : value.length === 0 ? <p class="empty">No trainer has a queue yet.</p> : null}
			{value?.map((t) => <OneTrainer key={t.name} t={t} />)}
		</Frame>
	)
}

function OneTrainer({ t }: { t: Trainer }) {
	const r = refused(t.name)
	const amount = (b: { unit: string }, n: number) => (b.unit === 'bytes' ? bytes(n) : String(n))
	return (
		<section class="card trainer" aria-label={'Trainer ' + t.name}>
			<h2>
				<b>{t.name}</b> <small>weight {t.weight}</small>
			</h2>
			{t.processes.length ? (
				<Grid name="Processes" head={['Shard', 'Process', 'Since', 'Heard']}>
					{t.processes.map((p) => (
						<tr key={p.shard}>
							<td>{p.shard}</td>
							<td>{p.name}</td>
							<td>{time(p.since)}</td>
							<td>{ago(p.heard)}</td>
						</tr>
					))}
				</Grid>
			) : (
				<p class="about">No process has asked for its calls in the last 40 s.</p>
			)}
			{t.hold ? (
				<p class="notes hold">
					It holds {t.hold.all ? 'all its rollouts' : plural(t.hold.count, 'rollout')} with calls to an upstream, {ago(t.hold.heard)}
				</p>
			) : null}
			<dl class="facts">
				{t.bounds.map((b) => (
					<div key={b.name}>
						<dt>{b.name}</dt>
						<dd>
							{amount(b, b.used)}
							{b.limit ? ' of ' + amount(b, b.limit) : ''}
							{b.limit ? <meter min={0} max={b.limit} high={b.limit * 0.9} value={b.used} aria-label={b.name} /> : null}
						</dd>
					</div>
				))}
				<div>
					<dt>answers that workers refused</dt>
					<dd>
						{r.refused} of {plural(r.calls, 'call')} of the rollouts in the table
					</dd>
				</div>
			</dl>
		</section>
	)
}
