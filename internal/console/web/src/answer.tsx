// A model call that a person answers.
import { useState } from 'preact/hooks'
import { Message, type Turn } from './message'
import { send } from './rights'

export interface Question {
	key: string
	gen: string
	number: number
	since: number
	messages: Turn[]
	tools: Tool[]
}

interface Tool {
	name: string
	description?: string
	fields: Field[] | null // null: the arguments are one JSON object
}

interface Field {
	name: string
	about?: string
	kind: 'string' | 'integer' | 'number' | 'boolean' | 'json'
	required?: boolean
	choices?: string[] // as JSON
}

// Answer is the form of one call. shown: the page has its messages already.
export function Answer({ path, q, shown }: { path: string; q: Question; shown: boolean }) {
	const [text, setText] = useState('')
	const [tool, setTool] = useState(q.tools.length === 1 ? 0 : -1)
	const [values, setValues] = useState<Record<string, string>>({})
	const [error, setError] = useState('')
	const [sent, setSent] = useState(false)
	const chosen = q.tools[tool]
	const submit = async (e: Event) => {
		e.preventDefault()
		setSent(true)
		setError('')
		const by = (e as SubmitEvent).submitter as HTMLButtonElement | null
		try {
			const tools = by?.name === 'call' && chosen ? [{ tool, arguments: argumentsOf(chosen, values) }] : []
			await send(path + '/calls/' + q.number + '/answer', { gen: q.gen, text, tools })
		} catch (e) {
			setError((e as Error).message)
			setSent(false)
		}
	}
	return (
		<form class="answer" aria-label={'Answer to call ' + q.number} onSubmit={submit}>
			<h2>Call {q.number} waits for your answer: you are the model</h2>
			{shown ? null : q.messages.map((t, i) => <Message key={i} turn={t} />)}
			<label>
				text
				<textarea name="text" rows={3} value={text} onInput={(e) => setText((e.target as HTMLTextAreaElement).value)} />
			</label>
			{q.tools.length ? (
				<label>
					tool
					<select name="tool" value={tool} onChange={(e) => (setTool(Number((e.target as HTMLSelectElement).value)), setValues({}))}>
						<option value={-1}>choose a tool</option>
						{q.tools.map((t, i) => (
							<option key={i} value={i}>
								{t.name}
							</option>
						))}
					</select>
				</label>
			) : null}
			{chosen ? <Fields tool={chosen} values={values} set={(name, value) => setValues({ ...values, [name]: value })} /> : null}
			{error ? <p class="alert" role="alert">{error}</p> : null}
			<p>
				{chosen ? (
					<button type="submit" name="call" disabled={sent}>
						Call {chosen.name}
					</button>
				) : null}{' '}
				<button type="submit" name="say" disabled={sent || text === ''}>
					Answer with the text alone
				</button>
			</p>
		</form>
	)
}

// whole is the name of the field for arguments without a form.
const whole = ''

function Fields({ tool, values, set }: { tool: Tool; values: Record<string, string>; set: (name: string, value: string) => void }) {
	const on = (name: string) => (e: Event) => set(name, (e.target as HTMLInputElement).value)
	return (
		<>
			{tool.description ? <p class="about">{tool.description}</p> : null}
			{tool.fields?.map((f) => (
				<label key={f.name} title={f.about}>
					{f.name}
					{f.required ? '' : ' (optional)'}
					{choicesOf(f) ? (
						<select data-field={f.name} value={values[f.name] ?? ''} onChange={on(f.name)}>
							<option value="" />
							{choicesOf(f)!.map((v) => (
								<option key={v} value={v}>
									{v}
								</option>
							))}
						</select>
					) : f.kind === 'number' || f.kind === 'integer' ? (
						<input data-field={f.name} type="number" step={f.kind === 'integer' ? 1 : 'any'} value={values[f.name] ?? ''} onInput={on(f.name)} />
					) : (
						<textarea data-field={f.name} rows={2} value={values[f.name] ?? ''} placeholder={f.kind === 'string' ? '' : 'JSON'} onInput={on(f.name)} />
					)}
				</label>
			)) ?? (
				<label>
					arguments
					<textarea data-field="arguments" rows={4} placeholder="a JSON object" value={values[whole] ?? '{}'} onInput={on(whole)} />
				</label>
			)}
		</>
	)
}

const choicesOf = (f: Field): string[] | undefined => f.choices ?? (f.kind === 'boolean' ? ['true', 'false'] : undefined)

// argumentsOf returns the arguments of a tool from the texts of its fields. An optional
// field without a text is left out.
function argumentsOf(tool: Tool, values: Record<string, string>): unknown {
	const read = (name: string, text: string): unknown => {
		try {
			return JSON.parse(text)
		} catch {
			throw new Error(name + ': want JSON')
		}
	}
	if (!tool.fields) return read('arguments', values[whole] ?? '{}')
	const out: [string, unknown][] = []
	for (const f of tool.fields) {
		const text = values[f.name] ?? ''
		if (text === '' && !f.required) continue
		out.push([f.name, f.kind === 'string' && !f.choices ? text : read(f.name, text)])
	}
	return Object.fromEntries(out)
}
