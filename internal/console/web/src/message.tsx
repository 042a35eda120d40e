// A message of a conversation.
import { useMemo, useState } from 'preact/hooks'
import { changesOf, safe } from './changes'
import { Diff } from './diff'
import { count } from './format'

export interface Turn {
	role: string
	text?: string
	reasoning?: string
	tools?: { id: string; name: string; arguments: string }[]
	for?: string
	same?: number // the call whose answer it is, unchanged
	pictures?: Picture[]
	cut?: number
}

interface Picture {
	type: string
	bytes?: number
	data?: string // base64 of a PNG or JPEG
	url?: string // of one that is not in the message
}

// Turns are messages before a call. Of an answer that came back unchanged the page has the
// text already; the one of the call above needs no line.
export function Turns({ turns, above }: { turns: Turn[]; above?: number }) {
	return (
		<>
			{turns.map((t, i) =>
				!t.same ? (
					<Message key={i} turn={t} />
				) : i === 0 && t.same === above ? null : (
					<p key={i} class="same">
						the <button onClick={() => show('call-' + t.same)}>answer of call {t.same}</button>, unchanged
					</p>
				),
			)}
		</>
	)
}

// show leads to a part of this page.
export function show(id: string) {
	const to = document.getElementById(id)
	to?.scrollIntoView({ block: 'start' })
	to?.focus({ preventScroll: true })
}

export function Message({ turn: t }: { turn: Turn }) {
	return (
		<div class={'message ' + (['system', 'developer', 'user', 'assistant', 'tool'].includes(t.role) ? t.role : 'other')}>
			<span class="role">{t.role}</span>
			{t.reasoning ? (
				<details class="reasoning">
					<summary>reasoning</summary>
					<pre>{t.reasoning}</pre>
				</details>
			) : null}
			{t.text ? <Long text={t.text} closed={t.role === 'system' || t.role === 'developer'} /> : null}
			{t.tools?.map((u, i) => (
				<Use key={i} name={u.name} given={u.arguments} />
			))}
			{t.pictures?.map((p, i) => (
				<PictureView key={i} picture={p} />
			))}
			{t.cut ? <p class="cut">{count(t.cut)} more bytes are in the transcript.</p> : null}
		</div>
	)
}

// PictureView shows a picture. Of another part, or one that there is no room for, it tells the
// type and the size.
function PictureView({ picture: p }: { picture: Picture }) {
	const about = [p.type, p.bytes ? count(p.bytes) + ' bytes' : '', p.url].filter(Boolean).join(', ')
	if (!p.data) return <p class="cut">{about}</p>
	return (
		<figure class="picture">
			<img src={'data:' + p.type + ';base64,' + p.data} alt={about} title={about} />
		</figure>
	)
}

// Use is a call of a tool. One that changes files is shown as their diffs.
function Use({ name, given }: { name: string; given: string }) {
	const changes = useMemo(() => changesOf(given), [given])
	return (
		<div class="use">
			<span class="role">{name}</span>
			{changes.map((c, i) => (
				<Diff key={i} change={c} />
			))}
			{changes.length ? (
				<details class="given">
					<summary>arguments</summary>
					<Long text={tidy(given)} />
				</details>
			) : (
				<Long text={tidy(given)} />
			)}
		</div>
	)
}

// tidy shows a single argument of text, such as a command, as its lines. The server does
// not see the characters that JSON escapes, so they are removed here.
function tidy(json: string): string {
	try {
		const value = JSON.parse(json)
		const entries = Object.entries(value)
		if (entries.length === 1 && typeof entries[0]![1] === 'string') return safe(entries[0]![1] as string)
		return safe(JSON.stringify(value, null, 2))
	} catch {
		return json
	}
}

const preview = 1500

export function Long({ text, closed = false }: { text: string; closed?: boolean }) {
	const [open, set] = useState(false)
	const limit = closed ? 200 : preview
	if (text.length <= limit || open) return <pre>{text}</pre>
	return (
		<>
			<pre>{text.slice(0, limit)}…</pre>
			<button onClick={() => set(true)}>Show all {count(text.length)} characters</button>
		</>
	)
}
