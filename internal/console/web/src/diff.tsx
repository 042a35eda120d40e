// Diffs of files.
import { useState } from 'preact/hooks'
import { byFile, type Change, type Changed } from './changes'
import { count, plural } from './format'
import { Section } from './page'

const preview = 30 // lines

export function Diff({ change: c, call }: { change: Change; call?: number }) {
	const [open, set] = useState(false)
	const lines = open ? c.lines : c.lines.slice(0, preview)
	return (
		<div class="diff" role="group" aria-label={'Change of ' + c.path}>
			<p class="about">
				<b>{c.path}</b> {c.what} <Sum added={c.added} removed={c.removed} />
				{call === undefined ? '' : ' · call ' + call}
			</p>
			{lines.length ? (
				<pre>
					{lines.map((l, i) => (
						<span key={i} class="diffline" data-kind={l.kind}>
							{l.kind === '…' ? '… ' + l.text : l.kind + l.text}
						</span>
					))}
				</pre>
			) : null}
			{open || c.lines.length <= preview ? null : <button onClick={() => set(true)}>Show all {count(c.lines.length)} lines</button>}
		</div>
	)
}

function Sum({ added, removed }: { added: number; removed: number }) {
	return (
		<span class="sum">
			<ins>+{added}</ins> <del>−{removed}</del>
		</span>
	)
}

// ChangedFiles lists the files that the tool calls of a conversation change.
export function ChangedFiles({ calls }: { calls: Parameters<typeof byFile>[0] }) {
	const { files, more } = byFile(calls)
	if (files.length === 0) return null
	return (
		<Section title="Changed files">
			<p class="cut">The changes that the agent's tools for files were asked for. A call may have failed, and commands change files, too.</p>
			{files.map((f) => (
				<OneFile key={f.path} f={f} />
			))}
			{more ? <p class="cut">Further files are in the conversation.</p> : null}
		</Section>
	)
}

function OneFile({ f }: { f: Changed }) {
	const [open, set] = useState(false)
	return (
		<details class="changed" onToggle={(e) => set(e.currentTarget.open)}>
			<summary>
				{f.path} <Sum added={f.added} removed={f.removed} /> {f.changes.length > 1 ? plural(f.changes.length, 'change') : null}
			</summary>
			{open ? f.changes.map(({ call, change }, i) => <Diff key={i} change={change} call={call} />) : null}
		</details>
	)
}
