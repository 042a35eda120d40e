// The page of one rollout.
import { useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import { ChangedFiles } from './diff'
import { count, duration, reward, time } from './format'
import { Live } from './live'
import { Message, Turns, type Turn } from './message'
import { Id, Link, Section, useLoaded, useTitle, Values } from './page'
import { groupPage, jobPage, type Row } from './rows'
import { RolloutActions } from './selection'
import { home, row } from './store'
import { TokenView } from './tokens'

interface Call {
	number: number
	parent?: number
	role: string
	model?: string
	merge: string
	at?: number
	ms: number
	wait_ms?: number
	prompt: number
	completion: number
	finish?: string
	fault?: string
	break?: string
	trained: number
	untrained?: string
	versions?: { version: string; start: number; end: number }[]
	new: Turn[]
	answer?: Turn
}

interface Detail extends Omit<Row, 'calls'> {
	rewards?: Record<string, number>
	metrics?: Record<string, number>
	separation?: string
	exit?: string
	stage?: string
	who?: string
	agent_version?: string
	notes: string[]
	phases: { name: string; start: number; ms: number; exit?: string; output?: string }[]
	files: string[]
	commands: string[]
	calls: Call[]
	rows: { row: number; role: string; length: number; trained: number; calls: number[] }[]
	tokens?: string
	findings: string[]
	missing?: string
	live?: boolean // its events can be heard
	closed?: string // the reason for which there are no rows and files
}

export function Rollout({ id }: { id: string }) {
	const now = row(id)
	const base = '/api/rollouts/' + encodeURIComponent(id)
	useTitle([now?.task, id].filter(Boolean).join(' '))
	const [d, error] = useLoaded<Detail>(base, JSON.stringify([now?.status, now?.attempt, now?.reward]))
	return (
		<main class="page" tabIndex={-1}>
			<p class="back">
				<Link to={home()}>← Rollouts</Link>
			</p>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{d ? <Page d={d} base={base} /> : error ? null : <p class="empty">Loading …</p>}
		</main>
	)
}

const over = ['done', 'failed', 'cancelled', 'dead']

function Page({ d, base }: { d: Detail; base: string }) {
	const [place, setPlace] = useState<Place | null>(null)
	return (
		<>
			<h1 data-status={d.status}>
				{d.task ?? d.id} <span class="status">{d.status}</span> <span class="reward">{d.reward === null ? 'no reward' : 'reward ' + reward(d.reward)}</span>
			</h1>
			{d.fault ? (
				<p class="fault">
					<b>{d.fault}</b> {d.text} <small>{[d.stage, d.who].filter(Boolean).join(', ')}</small>
				</p>
			) : null}
			<RolloutActions d={d} />
			<Facts d={d} />
			<Phases d={d} />
			{d.live && (d.missing || !over.includes(d.status)) ? <Live base={base} status={d.status} missing={d.missing} /> : <Conversation d={d} open={setPlace} />}
			<ChangedFiles calls={d.calls} />
			<Tokens d={d} base={base} place={place} show={setPlace} />
			<Files d={d} base={base} />
			{d.closed ? (
				<Section title="Training rows and files">
					<p>{d.closed}</p>
				</Section>
			) : null}
			{d.commands.length ? (
				<Section title="Commands">
					{d.commands.map((c) => (
						<Command key={c} text={c} />
					))}
				</Section>
			) : null}
		</>
	)
}

function Facts({ d }: { d: Detail }) {
	const group = groupPage(d)
	const facts: [string, ComponentChildren][] = [
		['Rollout', <Id text={d.id} />],
		['Trainer', d.trainer],
		['Group', group ? <Link to={group}><Id text={d.group + ' · ' + d.index} /></Link> : undefined],
		['Job', d.job ? <Link to={jobPage(d.job)}><Id text={d.job + ' / ' + (d.trial ?? '')} /></Link> : undefined],
		['Agent', [d.agent, d.agent_version].filter(Boolean).join(' ')],
		['Agent ended', d.exit],
		['Worker', d.worker ? <Id text={d.worker} /> : undefined],
		['Attempt', d.attempt ? String(d.attempt) : undefined],
		['Calls', d.calls.length ? String(d.calls.length) : undefined],
		['Tokens', d.prompt ? count(d.prompt) + ' + ' + count(d.completion) : undefined],
		['Started', time(d.started)],
		['Time', duration(d.ms)],
		['Verifier', d.separation],
		...Object.entries(d.rewards ?? {}).map(([k, v]): [string, string] => ['Reward ' + k, reward(v)]),
		...Object.entries(d.metrics ?? {}).map(([k, v]): [string, string] => ['Metric ' + k, reward(v)]),
		...Object.entries(d.labels ?? {}).map(([k, v]): [string, string] => ['Label ' + k, v]),
	]
	return (
		<>
			<Values values={facts} />
			{d.notes.length ? (
				<ul class="notes">
					{d.notes.map((n) => (
						<li key={n}>{n}</li>
					))}
				</ul>
			) : null}
		</>
	)
}

function Phases({ d }: { d: Detail }) {
	if (d.phases.length === 0) return null
	const begin = Math.min(...d.phases.map((p) => p.start))
	const end = Math.max(...d.phases.map((p) => p.start + p.ms), begin + 1)
	const share = (ms: number) => (100 * ms) / (end - begin) + '%'
	return (
		<Section title="Phases">
			{d.phases.map((p, i) => (
				<details key={i} class="phase" open={false}>
					<summary>
						<span class="name">{p.name}</span>
						<span class="lane">
							<span class="bar" style={{ marginLeft: share(p.start - begin), width: share(p.ms) }} />
						</span>
						<span class="number">{duration(p.ms)}</span>
						<span class="exit">{p.exit}</span>
					</summary>
					<pre>{p.output || 'It wrote nothing.'}</pre>
				</details>
			))}
		</Section>
	)
}

function Conversation({ d, open }: { d: Detail; open: (place: Place) => void }) {
	const row = (call: number) => d.rows.find((r) => r.calls.includes(call))
	if (d.missing) return <Section title="Conversation"><p class="empty">{d.missing}</p></Section>
	return (
		<Section title="Conversation">
			{d.calls.map((c, i) => (
				<article key={c.number} id={'call-' + c.number} class="call" tabIndex={-1} aria-label={'Call ' + c.number}>
					{c.break ? <p class="break">A new training row begins: {c.break}</p> : null}
					<Turns turns={c.new} above={d.calls[i - 1]?.number} />
					<p class="about">
						<b>call {c.number}</b> · {c.role}
						{c.model ? ' · ' + c.model : ''} · {count(c.prompt)} + {count(c.completion)} tokens{c.ms ? ' · answered in ' + duration(c.ms) : ''}
						{c.wait_ms ? ' · the agent took ' + duration(c.wait_ms) + ' before it' : ''}
						{c.finish ? ' · ' + c.finish : ''}
						{c.versions?.length ? ' · ' + c.versions.map((v) => v.version).join(', ') : ''}
						{c.completion > c.trained ? ' · ' + (c.completion - c.trained) + ' not trained' + (c.untrained ? ': ' + c.untrained : '') : ''}{' '}
						{row(c.number) ? <button class="totokens" onClick={() => open({ row: row(c.number)!.row, call: c.number })}>Tokens</button> : null}
					</p>
					{c.fault ? <p class="fault">{c.fault}</p> : null}
					{c.answer ? <Message turn={c.answer} /> : null}
				</article>
			))}
		</Section>
	)
}

// A place of a training row: the answer of a call.
interface Place {
	row: number
	call?: number
}

function Tokens({ d, base, place, show }: { d: Detail; base: string; place: Place | null; show: (place: Place | null) => void }) {
	if (d.rows.length === 0 && d.findings.length === 0) return null
	return (
		<Section title="Training rows">
			{d.tokens ? <p>{d.tokens}</p> : null}
			<div class="rows">
				{d.rows.map((r) => (
					<button key={r.row} aria-pressed={place?.row === r.row} onClick={() => show(place?.row === r.row ? null : { row: r.row })}>
						row {r.row}: {r.role}, {count(r.length)} tokens, {count(r.trained)} trained, calls {r.calls.join(' ')}
					</button>
				))}
			</div>
			{place ? <TokenView path={base + '/rows/' + place.row} place={place} /> : null}
			{d.findings.length ? (
				<ul class="notes">
					{d.findings.map((f) => (
						<li key={f}>{f}</li>
					))}
				</ul>
			) : null}
		</Section>
	)
}

function Files({ d, base }: { d: Detail; base: string }) {
	if (d.files.length === 0) return null
	return (
		<Section title="Files">
			<ul class="files">
				{d.files.map((name) => (
					<li key={name}>
						<a href={base + '/files/' + name.split('/').map(encodeURIComponent).join('/')} download>
							{name.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, '\ufffd')}
						</a>
					</li>
				))}
			</ul>
		</Section>
	)
}

function Command({ text }: { text: string }) {
	const [done, set] = useState(false)
	return (
		<p class="command">
			<code>{text}</code>
			<button onClick={() => navigator.clipboard.writeText(text).then(() => set(true))}>{done ? 'Copied' : 'Copy'}</button>
		</p>
	)
}
