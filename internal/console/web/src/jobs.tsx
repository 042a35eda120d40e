// The pages of jobs: the list, one job as a matrix, two jobs compared.
import { useEffect, useRef, useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import { Bar, Passes, Rewards } from './charts'
import { count, dollars, duration, plural, reward, time } from './format'
import { shared } from './load'
import { Grid, Link, Section, useLoaded, useTitle } from './page'
import { comparePage, groupPage, jobPage, rolloutPage, tablePage, type Row } from './rows'
import { filters, go, progress, rewardsOf } from './store'

interface Cause {
	stage?: string
	code: string
	who?: string
	count: number
	example: string
}

interface Summary {
	trials: number
	ended: number
	rewarded: number
	mean: number | null
	pass_at?: Record<string, number>
	errors?: Cause[]
	calls: number
	prompt_tokens: number
	completion_tokens: number
	seconds: number
	cost_usd: number | null
	unpriced?: number
}

interface Cell extends Summary {
	agent: string
	model?: string
	interval: [number, number] | null
	trainer?: string
	group?: string
}

interface JobInfo extends Summary {
	job: string
	state: string
	agents: string[]
	models: string[]
	created_at: string
	stopped?: string
	trouble?: string
	variants: Cell[]
}

interface JobOf extends JobInfo {
	tasks: { task: string; dir: string; variants: Cell[] }[]
	more?: number
	retries: Cause[]
}

const faults = (s: Summary) => (s.errors ?? []).reduce((n, c) => n + c.count, 0)
const label = (c: Cell) => [c.agent, c.model].filter(Boolean).join(' ')
const known = (r: number | null) => (r === null ? '-' : reward(r))

// share is the background of a mean reward from 0 to 1, in ten steps.
const share = (mean: number | null) => (mean === null ? '' : 'share' + Math.max(0, Math.min(9, Math.floor(mean * 10))))

// useJobs loads a value again while rollouts of jobs change, and while one of the jobs
// runs, since its state is no change of a rollout.
function useJobs<T>(path: string, test: (r: Row) => boolean, runs: (value: T) => boolean): [T | null, string] {
	const now = progress(test)
	const [key, set] = useState(now)
	const [tick, again] = useState(0)
	const last = useRef(0)
	const [value, error] = useLoaded<T>(path, key + ' ' + tick)
	useEffect(() => {
		if (key === now) return
		const timer = setTimeout(() => ((last.current = Date.now()), set(now)), Math.max(0, last.current + 2000 - Date.now()))
		return () => clearTimeout(timer)
	}, [key, now])
	const running = value !== null && runs(value)
	useEffect(() => {
		if (!running) return
		const timer = setInterval(() => document.visibilityState === 'hidden' || again((n) => n + 1), 5000)
		return () => clearInterval(timer)
	}, [running])
	return [value, error]
}

const open = (j: JobInfo) => j.state === 'running' || j.state === 'paused'

function Loaded({ error, ready, children }: { error: string; ready: boolean; children: ComponentChildren }) {
	return (
		<main class="page" tabIndex={-1}>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{ready ? children : error ? null : <p class="empty">Loading …</p>}
		</main>
	)
}

export function Jobs() {
	useTitle('Jobs')
	const [list, error] = useJobs<{ jobs: JobInfo[]; trouble?: string }>('/api/jobs', () => true, (l) => l.jobs.some(open))
	return (
		<Loaded error={error || list?.trouble || ''} ready={list !== null}>
			<h1>Jobs</h1>
			{list?.jobs.length ? (
				<Grid name="Jobs" head={['Job', 'State', 'Agents', 'Models', 'Ended', 'Mean', 'Faults', 'Cost', 'Tokens', 'Begun']}>
					{list.jobs.map((j) => (
						<tr key={j.job} data-status={j.state}>
							<th scope="row" class="text">
								<Link to={jobPage(j.job)}>{j.job}</Link>
							</th>
							{j.trouble ? (
								<td class="fault" colSpan={9}>
									{j.trouble}
								</td>
							) : (
								<>
									<td class="status">{j.state}</td>
									<td>{j.agents.join(', ')}</td>
									<td>{j.models.join(', ')}</td>
									<td class="number">
										{j.ended} of {j.trials}
									</td>
									<td class={'number ' + share(j.mean)}>{known(j.mean)}</td>
									<td class="number">{faults(j) || ''}</td>
									<td class="number">{dollars(j.cost_usd)}</td>
									<td class="number">{count(j.prompt_tokens + j.completion_tokens)}</td>
									<td class="number">{time(Date.parse(j.created_at))}</td>
								</>
							)}
						</tr>
					))}
				</Grid>
			) : (
				<p class="empty">There are no jobs yet. `turngate run` makes one.</p>
			)}
			{list && list.jobs.length > 1 ? <Choose jobs={list.jobs} a={list.jobs[1]!.job} b={list.jobs[0]!.job} /> : null}
		</Loaded>
	)
}

// Choose leads to the comparison of two jobs.
function Choose({ jobs, a, b }: { jobs: JobInfo[]; a: string; b: string }) {
	const [from, setFrom] = useState(a)
	const [to, setTo] = useState(b)
	const one = (name: string, value: string, set: (v: string) => void) => (
		<label>
			{name}
			<select name={name} value={value} onChange={(e) => set(e.currentTarget.value)}>
				{jobs.map((j) => (
					<option key={j.job} value={j.job}>
						{j.job}
					</option>
				))}
			</select>
		</label>
	)
	return (
		<Section title="Compare">
			<form
				class="compare"
				onSubmit={(e) => {
					e.preventDefault()
					go(comparePage(from, to))
				}}
			>
				{one('from', from, setFrom)}
				{one('to', to, setTo)}
				<button type="submit">Compare</button>
			</form>
		</Section>
	)
}

export function Job() {
	const name = filters.value.job ?? ''
	useTitle('Job ' + name)
	const [j, error] = useJobs<JobOf>('/api/job?' + new URLSearchParams({ job: name }), (r) => r.job === name, open)
	return (
		<Loaded error={error} ready={j !== null}>
			{j ? <JobView j={j} /> : null}
		</Loaded>
	)
}

function JobView({ j }: { j: JobOf }) {
	return (
		<>
			<h1 data-status={j.state}>
				{j.job} <span class="status">{j.state}</span>
			</h1>
			{j.stopped ? <p class="notes">{j.stopped}</p> : null}
			<p>
				{j.ended} of {j.trials} trials ended{j.ended < j.trials ? ', ' + (j.trials - j.ended) + ' are open' : ''}, begun {time(Date.parse(j.created_at))}.{' '}
				<Link to={tablePage({ job: j.job })}>Their rollouts</Link>
			</p>
			<Section title="Agents and models">
				<Grid name="Agents and models" head={['Agent', 'Model', 'Ended', 'Mean', '95 %', 'Pass@k', 'Calls', 'Tokens', 'Cost', 'Time', 'Faults']}>
					{j.variants.map((c) => (
						<tr key={label(c)}>
							<th scope="row">{c.agent}</th>
							<td>{c.model ?? ''}</td>
							<td class="number">
								{c.ended} of {c.trials}
							</td>
							<td class={'number ' + share(c.mean)}>{known(c.mean)}</td>
							<td class="number">{c.interval ? reward(c.interval[0]) + ' to ' + reward(c.interval[1]) : '-'}</td>
							<td class="pass">
								<Passes at={c.pass_at} />
							</td>
							<td class="number">{count(c.calls)}</td>
							<td class="number" title={c.prompt_tokens + ' + ' + c.completion_tokens}>
								{count(c.prompt_tokens)} + {count(c.completion_tokens)}
							</td>
							<td class="number">{dollars(c.cost_usd)}</td>
							<td class="number">{duration(Math.round(c.seconds * 1000))}</td>
							<td class="number">{faults(c) || ''}</td>
						</tr>
					))}
				</Grid>
			</Section>
			<div class="pair">
				<Pareto list={j.variants} />
				<Rewards rewards={rewardsOf(j.job)} mean={j.mean} />
			</div>
			<Spent tasks={j.tasks} />
			<Section title="Tasks">
				<Grid name="Tasks" head={['Task', ...j.variants.map(label)]}>
					{j.tasks.map((t) => (
						<tr key={t.dir}>
							<th scope="row" class="text" title={t.dir}>
								{t.task}
							</th>
							{t.variants.map((c) => (
								<td key={label(c)} class={'number ' + share(c.mean)} title={about(c)}>
									<Link to={groupPage({ trainer: c.trainer ?? '', group: c.group })}>{known(c.mean)}</Link>
									{faults(c) ? <small class="fault"> {plural(faults(c), 'fault')}</small> : null}
									{c.ended < c.trials ? (
										<small>
											{' '}
											{c.ended} of {c.trials}
										</small>
									) : null}
								</td>
							))}
						</tr>
					))}
				</Grid>
				{j.more ? <p class="empty">{j.more} more tasks are left out{shared ? '' : '; `turngate job report -o json` has them'}.</p> : null}
			</Section>
			<Causes title="Faults" list={j.errors ?? []} job={j.job} />
			<Causes title="Faults after which trials ran again" list={j.retries} />
		</>
	)
}

const longest = 40 // tasks of Spent

// Spent shows the tokens and the time of the tasks that took the most.
function Spent({ tasks }: { tasks: JobOf['tasks'] }) {
	const list = tasks
		.map((t) => {
			const ended = t.variants.reduce((n, c) => n + c.ended, 0) || 1
			const sum = (of: (c: Cell) => number) => t.variants.reduce((n, c) => n + of(c), 0) / ended
			return { ...t, tokens: sum((c) => c.prompt_tokens + c.completion_tokens), seconds: sum((c) => c.seconds) }
		})
		.sort((a, b) => b.tokens - a.tokens || b.seconds - a.seconds)
	const tokens = Math.max(0, ...list.map((t) => t.tokens))
	const seconds = Math.max(0, ...list.map((t) => t.seconds))
	if (tokens === 0 && seconds === 0) return null
	return (
		<Section title="Tokens and time of a rollout, by task">
			<Grid name="Tokens and time by task" head={['Task', 'Tokens', 'Time']}>
				{list.slice(0, longest).map((t) => (
					<tr key={t.dir}>
						<th scope="row" class="text">
							{t.task}
						</th>
						<td>
							<Bar value={t.tokens} most={tokens} text={count(Math.round(t.tokens))} />
						</td>
						<td>
							<Bar value={t.seconds} most={seconds} text={duration(Math.round(t.seconds * 1000))} />
						</td>
					</tr>
				))}
			</Grid>
			{list.length > longest ? <p class="about">The {longest} tasks with the most tokens of {list.length}.</p> : null}
		</Section>
	)
}

const passes = (c: Cell) =>
	Object.entries(c.pass_at ?? {})
		.map(([k, p]) => 'pass@' + k + ' ' + reward(p))
		.join(', ')

const about = (c: Cell) => [passes(c), c.interval ? reward(c.interval[0]) + ' to ' + reward(c.interval[1]) : '', dollars(c.cost_usd), count(c.prompt_tokens + c.completion_tokens) + ' tokens', duration(Math.round(c.seconds * 1000))].filter(Boolean).join(' · ')

function Causes({ title, list, job }: { title: string; list: Cause[]; job?: string }) {
	if (list.length === 0) return null
	return (
		<Section title={title}>
			<Grid name={title} head={['Code', 'Number', 'Stage', 'By', 'For example']}>
				{list.map((c, i) => (
					<tr key={i}>
						<th scope="row">{job ? <Link to={tablePage({ job, fault: c.code })}>{c.code}</Link> : c.code}</th>
						<td class="number">{c.count}</td>
						<td>{c.stage}</td>
						<td>{c.who}</td>
						<td class="text">{c.example}</td>
					</tr>
				))}
			</Grid>
		</Section>
	)
}

// Pareto shows the mean reward of each agent and model against its cost, or against its
// tokens if no cost is known. A point is on the front if no other one has a higher mean
// for the same cost or less.
function Pareto({ list }: { list: Cell[] }) {
	const priced = list.some((c) => c.cost_usd !== null)
	const points = list.flatMap((c) => {
		const cost = priced ? c.cost_usd : c.prompt_tokens + c.completion_tokens
		return cost === null || c.mean === null ? [] : [{ c, cost, mean: c.mean }]
	})
	if (points.length < 2) return null
	points.sort((a, b) => a.cost - b.cost || b.mean - a.mean)
	const front = points.filter((p) => !points.some((q) => q !== p && q.cost <= p.cost && q.mean >= p.mean && (q.cost < p.cost || q.mean > p.mean)))
	const most = Math.max(...points.map((p) => p.cost)) || 1
	const low = Math.min(0, ...points.map((p) => p.mean))
	const high = Math.max(1, ...points.map((p) => p.mean))
	const x = (cost: number) => 40 + (cost / most) * 400
	const y = (mean: number) => 190 - ((mean - low) / (high - low)) * 170
	const number = priced ? dollars : count
	const labels: { x: number; y: number }[] = [] // below those that they would cover
	for (const p of points) {
		const at = { x: x(p.cost) + 8, y: y(p.mean) + 4 }
		while (labels.some((l) => Math.abs(l.x - at.x) < 110 && Math.abs(l.y - at.y) < 11)) at.y += 11
		labels.push(at)
	}
	return (
		<Section title={priced ? 'Reward and cost' : 'Reward and tokens'}>
			<svg class="plot" viewBox="0 0 560 220" role="img" aria-label={'Best for their ' + (priced ? 'cost' : 'tokens') + ': ' + front.map((p) => label(p.c)).join(', ')}>
				<line class="axis" x1={40} x2={440} y1={190} y2={190} />
				<line class="axis" x1={40} x2={40} y1={20} y2={190} />
				<text x={24} y={24}>
					{reward(high)}
				</text>
				<text x={24} y={193}>
					{reward(low)}
				</text>
				<text x={440} y={206}>
					{number(most)}
				</text>
				<polyline class="front" points={front.map((p) => x(p.cost) + ',' + y(p.mean)).join(' ')} />
				{points.map((p, i) => (
					<g key={label(p.c)} class={front.includes(p) ? 'point best' : 'point'}>
						<title>{`${label(p.c)}: mean reward ${reward(p.mean)}, ${number(p.cost)}${priced ? '' : ' tokens'}, ${p.c.ended} of ${p.c.trials} ended`}</title>
						<circle cx={x(p.cost)} cy={y(p.mean)} r={5} />
						<text x={labels[i]!.x} y={labels[i]!.y}>
							{label(p.c).slice(0, 24)}
						</text>
					</g>
				))}
			</svg>
		</Section>
	)
}

interface Side {
	trials: number
	ended: number
	faults: number
	reward: number | null
	rollouts: Row[]
}

interface ComparisonOf {
	a: string
	b: string
	counts: Record<string, number>
	tasks: { task: string; kind: string; a: Side | null; b: Side | null }[]
	more?: number
}

export function Compare() {
	const { a = '', b = '' } = filters.value
	useTitle(a + ' → ' + b)
	const [c, error] = useJobs<ComparisonOf>('/api/compare?' + new URLSearchParams({ a, b }), (r) => r.job === a || r.job === b, () => false)
	const [all, setAll] = useState(false)
	const [one] = useJobs<JobOf>('/api/job?' + new URLSearchParams({ job: a }), (r) => r.job === a, open)
	const [two] = useJobs<JobOf>('/api/job?' + new URLSearchParams({ job: b }), (r) => r.job === b, open)
	const shown = c?.tasks.filter((t) => all || t.kind !== 'same') ?? []
	return (
		<Loaded error={error} ready={c !== null}>
			<h1>
				<Link to={jobPage(a)}>{a}</Link> → <Link to={jobPage(b)}>{b}</Link>
			</h1>
			{one && two ? <Both one={one} two={two} /> : null}
			<p>
				{Object.entries(c?.counts ?? {})
					.map(([kind, n]) => n + ' ' + kind)
					.join(', ')}{' '}
				<button aria-pressed={all} onClick={() => setAll(!all)}>
					Also those that are the same
				</button>{' '}
				<Link to={comparePage(b, a)}>Exchange them</Link>
			</p>
			{shown.length ? (
				<Grid name="Tasks" head={['Task', 'Change', a, b]}>
					{shown.map((t) => (
						<tr key={t.task}>
							<th scope="row" class="text">
								{t.task}
							</th>
							<td class={'change-' + t.kind.split(' ')[0]}>{t.kind}</td>
							<SideView side={t.a} />
							<SideView side={t.b} />
						</tr>
					))}
				</Grid>
			) : (
				<p class="empty">No task differs.</p>
			)}
			{c?.more ? <p class="empty">{c.more} more tasks are in `turngate job diff -o json`.</p> : null}
		</Loaded>
	)
}

// Both shows the figures of two jobs side by side.
function Both({ one, two }: { one: JobOf; two: JobOf }) {
	const tokens = (j: JobOf) => j.prompt_tokens + j.completion_tokens
	const figures: [string, (j: JobOf) => number | null, (n: number) => string][] = [
		['Mean reward', (j) => j.mean, reward],
		['Cost', (j) => j.cost_usd, dollars],
		['Tokens', tokens, count],
		['Time', (j) => j.seconds, (n) => duration(Math.round(n * 1000))],
		['Ended', (j) => j.ended, String],
		['Faults', faults, String],
	]
	return (
		<Section title="Side by side">
			<Grid name="Side by side" head={['', one.job, two.job]}>
				{figures.map(([name, of, text]) => {
					const values = [of(one), of(two)]
					const most = Math.max(...values.map((v) => v ?? 0))
					return (
						<tr key={name}>
							<th scope="row">{name}</th>
							{values.map((v, i) => (
								<td key={i}>{v === null ? '-' : <Bar value={Math.max(0, v)} most={most} text={text(v)} />}</td>
							))}
						</tr>
					)
				})}
			</Grid>
			<div class="pair">
				{[one, two].map((j, i) => (
					<Rewards key={i} title={'Rewards of ' + j.job} rewards={rewardsOf(j.job)} mean={j.mean} />
				))}
			</div>
		</Section>
	)
}

function SideView({ side }: { side: Side | null }) {
	if (side === null) return <td>-</td>
	return (
		<td class={'side ' + share(side.reward)}>
			<b>{known(side.reward)}</b>
			{side.faults ? <small class="fault"> {plural(side.faults, 'fault')}</small> : null}
			{side.ended < side.trials ? (
				<small>
					{' '}
					{side.ended} of {side.trials} ended
				</small>
			) : null}
			<br />
			{side.rollouts.map((r) => (
				<Link key={r.id} to={rolloutPage(r.id)} title={[r.id, r.status, r.fault].filter(Boolean).join(' ')}>
					{r.reward === null ? (r.fault ?? r.status) : reward(r.reward)}
				</Link>
			))}
			{side.trials > side.rollouts.length ? ' …' : ''}
		</td>
	)
}
