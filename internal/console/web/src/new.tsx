// The page that runs a rollout.
import { useEffect, useState } from 'preact/hooks'
import { awayFor } from './load'
import { Section, useLoaded, useTitle } from './page'
import { send } from './rights'
import { rolloutPage } from './rows'
import { go } from './store'

interface Choices {
	trainer: string
	tasks: { name: string; folder: string }[]
	agents: string[]
	sandboxes: string[]
}

const first = 'Write the line `Hello, world!` to the file hello.txt in the working directory.'
const firstCheck = "grep -qx 'Hello, world!' hello.txt"

// The first of some values that is among the known ones, or else the first known one.
const prefer = (known: string[], ...list: string[]) => list.find((v) => known.includes(v)) ?? known[0] ?? ''

export function New() {
	useTitle('Run a rollout')
	const [turn, setTurn] = useState(0)
	const [choices, error] = useLoaded<Choices>('/api/new', String(turn))
	useEffect(() => {
		if (!choices || choices.agents.length > 0) return
		const timer = setTimeout(() => setTurn(turn + 1), awayFor) // until a worker is there
		return () => clearTimeout(timer)
	}, [choices])
	return (
		<main class="page" tabIndex={-1}>
			<h1>Run a rollout</h1>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			{choices ? <Form choices={choices} /> : error ? null : <p class="empty">Loading …</p>}
		</main>
	)
}

function Form({ choices: c }: { choices: Choices }) {
	const [form, set] = useState({
		folder: '',
		typed: '',
		instruction: first,
		check: firstCheck,
		agent: '', // empty: the preferred one
		sandbox: '',
		image: '',
		by: 'you',
		where: '',
		model: '',
	})
	const q = { ...form, agent: form.agent || prefer(c.agents, 'mini'), sandbox: form.sandbox || prefer(c.sandboxes, 'local', 'docker') }
	const [error, setError] = useState('')
	const [sent, setSent] = useState(false)
	const on = (name: keyof typeof q) => (e: Event) => set({ ...form, [name]: (e.target as HTMLInputElement).value })
	const submit = async (e: Event) => {
		e.preventDefault()
		setSent(true)
		setError('')
		const folder = q.folder === 'typed' ? q.typed : q.folder
		try {
			const { id } = await send<{ id: string }>('/api/new', {
				folder,
				instruction: folder ? '' : q.instruction,
				check: folder ? '' : q.check,
				agent: q.agent,
				sandbox: q.sandbox,
				image: q.image,
				answerer: q.by === 'you' ? '' : q.by + ':' + q.where,
				model: q.by === 'upstream' ? q.model : '',
			})
			go(rolloutPage(id))
		} catch (e) {
			setError((e as Error).message)
			setSent(false)
		}
	}
	return (
		<form class="ask" onSubmit={submit}>
			<Section title="Task">
				<label>
					task
					<select name="folder" value={q.folder} onChange={on('folder')}>
						<option value="">an instruction</option>
						{c.tasks.map((t) => (
							<option key={t.folder} value={t.folder}>
								{t.name}
							</option>
						))}
						<option value="typed">a folder on the host of this console</option>
					</select>
				</label>
				{q.folder === 'typed' ? (
					<label>
						folder
						<input name="typed" value={q.typed} onInput={on('typed')} required />
					</label>
				) : q.folder === '' ? (
					<>
						<label>
							instruction
							<textarea name="instruction" rows={3} value={q.instruction} onInput={on('instruction')} required />
						</label>
						<label>
							check: the reward is 1 if this command succeeds
							<input name="check" value={q.check} onInput={on('check')} />
						</label>
					</>
				) : null}
			</Section>
			<Section title="Agent">
				<label>
					agent
					<select name="agent" value={q.agent} onChange={on('agent')}>
						{c.agents.map((a) => (
							<option key={a} value={a}>
								{a}
							</option>
						))}
					</select>
				</label>
				<label>
					sandbox
					<select name="sandbox" value={q.sandbox} onChange={on('sandbox')}>
						{c.sandboxes.map((s) => (
							<option key={s} value={s}>
								{s}
							</option>
						))}
					</select>
				</label>
				{q.sandbox !== 'local' ? (
					<label>
						image
						<input name="image" value={q.image} placeholder={q.folder ? "the task's" : 'debian:bookworm'} onInput={on('image')} />
					</label>
				) : null}
				{c.agents.length === 0 ? <p class="alert" role="alert">No worker is there.</p> : null}
			</Section>
			<Section title="Answers to its model calls">
				<label>
					from
					<select name="by" value={q.by} onChange={on('by')}>
						<option value="you">you</option>
						<option value="upstream">a model server</option>
						<option value="replay">a script</option>
						<option value="transcript">a recorded rollout</option>
					</select>
				</label>
				{q.by !== 'you' ? (
					<label>
						{q.by === 'upstream' ? 'URL' : 'file on the host of this console'}
						<input name="where" value={q.where} placeholder={q.by === 'upstream' ? 'http://127.0.0.1:8000/v1' : q.by === 'replay' ? 'replay.yaml' : 'transcript.jsonl.zst'} onInput={on('where')} required />
					</label>
				) : null}
				{q.by === 'upstream' ? (
					<label>
						model
						<input name="model" value={q.model} placeholder="its only one" onInput={on('model')} />
					</label>
				) : null}
			</Section>
			{error ? <p class="alert" role="alert">{error}</p> : null}
			<p>
				<button type="submit" disabled={sent}>
					Run as trainer {c.trainer}
				</button>
			</p>
		</form>
	)
}
