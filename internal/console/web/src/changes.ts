// The changes of files that an agent's tool calls ask for, by the names of their
// arguments, which agents choose for their tools.
import { diffLines } from 'diff'

export interface Line {
	kind: '+' | '-' | ' ' | '…' // '…': lines in between are left out
	text: string
}

export interface Change {
	path: string
	what: 'edit' | 'write' | 'add' | 'delete' | 'move'
	lines: Line[]
	added: number
	removed: number
	content?: string // of the file after it, if the call has all of it
	replaced?: [string, string] // the text before and after it, of which the file has one
}

const maxChanges = 100 // of one tool call
const maxFiles = 500 // of a rollout
const maxEdits = 500 // of one diff; beyond it, all old lines come before all new ones
const around = 3 // lines before and after a changed one

// safe removes the characters that JSON escapes, which the server does not see.
export const safe = (text: string): string => text.replace(/[^\P{Cc}\n\t]|[\p{Bidi_Control}\p{Zl}\p{Zp}]/gu, '\ufffd')

const line = (text: string): string => safe(text).replace(/[\n\t]/g, ' ').slice(0, 500)

type Args = Record<string, unknown>

const pick = (args: Args, names: string[]): string | undefined => {
	for (const n of names) if (typeof args[n] === 'string') return args[n] as string
	return undefined
}

const paths = ['file_path', 'filePath', 'path', 'absolute_path', 'absolutePath', 'filepath', 'filename', 'target_file', 'notebook_path', 'file']
const olds = ['old_string', 'oldString', 'old_str', 'oldText', 'old_text', 'old']
const news = ['new_string', 'newString', 'new_str', 'newText', 'new_text', 'new', 'insert_text', 'new_source']
const contents = ['content', 'contents', 'file_text', 'fileText']

const split = (text: string): string[] => safe(text).replace(/\n$/, '').split('\n')

function made(path: string, what: Change['what'], lines: Line[]): Change {
	const n = (kind: string) => lines.filter((l) => l.kind === kind).length
	return { path: line(path), what, lines, added: n('+'), removed: n('-') }
}

// between is the change of lines from one text to another.
function between(before: string, after: string): Line[] {
	const end = (text: string) => (text === '' || text.endsWith('\n') ? text : text + '\n')
	const parts = diffLines(end(safe(before)), end(safe(after)), { maxEditLength: maxEdits }) ?? [
		{ value: before, removed: true, added: false },
		{ value: after, removed: false, added: true },
	]
	const out: Line[] = []
	parts.forEach((p, i) => {
		if (p.value === '') return
		const lines = split(p.value)
		if (p.added || p.removed) {
			for (const text of lines) out.push({ kind: p.added ? '+' : '-', text })
			return
		}
		const head = i === 0 ? 0 : around
		const tail = i === parts.length - 1 ? 0 : around
		if (lines.length <= head + tail + 1) {
			for (const text of lines) out.push({ kind: ' ', text })
			return
		}
		for (const text of lines.slice(0, head)) out.push({ kind: ' ', text })
		out.push({ kind: '…', text: '' })
		for (const text of lines.slice(lines.length - tail)) out.push({ kind: ' ', text })
	})
	return out
}

const whole = (kind: '+' | '-', text: string): Line[] => (text === '' ? [] : split(text).map((text) => ({ kind, text })))

// patched reads a patch of apply_patch, the tool of Codex, which others have, too.
function patched(patch: string): Change[] {
	const out: Change[] = []
	let at: { path: string; what: Change['what']; lines: Line[] } | null = null
	const close = () => {
		if (at) out.push(made(at.path, at.what, at.lines))
		at = null
	}
	for (const text of split(patch.slice(patch.indexOf('*** Begin Patch')))) {
		const head = /^\*\*\* (Add|Update|Delete) File: (.*)$/.exec(text)
		if (head) {
			close()
			at = { path: head[2]!, what: head[1] === 'Add' ? 'add' : head[1] === 'Delete' ? 'delete' : 'edit', lines: [] }
			continue
		}
		if (text.startsWith('*** End Patch')) break
		const now = at as { path: string; what: Change['what']; lines: Line[] } | null // a closure changes it
		if (!now) continue
		const move = /^\*\*\* Move to: (.*)$/.exec(text)
		if (move) {
			now.path += ' → ' + move[1]
			now.what = 'move'
		} else if (text.startsWith('@@')) {
			if (now.lines.length || text.length > 2) now.lines.push({ kind: '…', text: text.slice(2).trim() })
		} else if (text.startsWith('+') || text.startsWith('-')) now.lines.push({ kind: text[0] as '+' | '-', text: text.slice(1) })
		else if (!text.startsWith('***')) now.lines.push({ kind: ' ', text: text.startsWith(' ') ? text.slice(1) : text })
	}
	close()
	return out
}

// blocks reads the SEARCH and REPLACE blocks of a diff.
function blocks(path: string, diff: string): Change[] {
	const out: Line[] = []
	let kind: '+' | '-' | null = null
	for (const text of split(diff)) {
		if (/^(<{3,}|-{3,}) ?SEARCH/.test(text)) {
			if (out.length) out.push({ kind: '…', text: '' })
			kind = '-'
		} else if (kind === '-' && /^={3,}$/.test(text)) kind = '+'
		else if (kind === '+' && /^(>{3,}|\+{3,}) ?REPLACE/.test(text)) kind = null
		else if (kind) out.push({ kind, text })
	}
	return out.length ? [made(path, 'edit', out)] : []
}

const isObject = (v: unknown): v is Args => typeof v === 'object' && v !== null && !Array.isArray(v)

// textsOf are the texts among the values of arguments, of which an argv has several.
const textsOf = (args: Args): string[] => Object.values(args).flatMap((v) => (typeof v === 'string' ? [v] : Array.isArray(v) ? v.filter((e): e is string => typeof e === 'string') : []))

// changesOf returns the changes that a tool call asks for; none: it changes no file by
// itself, or its arguments were cut.
export function changesOf(json: string): Change[] {
	let args: unknown
	try {
		args = JSON.parse(json)
	} catch {
		args = json
	}
	if (typeof args === 'string') return args.includes('*** Begin Patch') ? patched(args).slice(0, maxChanges) : []
	if (!isObject(args)) return []
	const patch = textsOf(args).find((t) => t.includes('*** Begin Patch'))
	if (patch !== undefined) return patched(patch).slice(0, maxChanges)
	const path = pick(args, paths)
	if (path === undefined || args.command === 'view') return []
	const edits = [args.edits, args.edit].flatMap((v) => (Array.isArray(v) ? v : [v])).filter(isObject)
	const out: Change[] = []
	for (const e of edits.length ? edits : [args]) {
		const before = pick(e, olds)
		const after = pick(e, news)
		if (before !== undefined && after !== undefined) out.push({ ...made(path, 'edit', between(before, after)), replaced: [before, after] })
		else if (before !== undefined && e === args && !('command' in args)) out.push(made(path, 'edit', whole('-', before)))
		else if (after !== undefined) out.push(made(path, 'edit', whole('+', after)))
	}
	if (out.length) return out.slice(0, maxChanges)
	const content = pick(args, contents)
	if (content !== undefined) return [{ ...made(path, 'write', whole('+', content)), content }]
	const diff = pick(args, ['diff'])
	return diff === undefined ? [] : blocks(path, diff)
}

export interface Changed {
	path: string
	changes: { call: number; change: Change }[]
	added: number
	removed: number
}

// byFile lists the changes of each file in the order of the calls. A file that was written
// before is compared with its text then, if that is known.
export function byFile(calls: { number: number; answer?: { tools?: { arguments: string }[] } }[]): { files: Changed[]; more: boolean } {
	const files = new Map<string, Changed & { now?: string }>()
	let more = false
	for (const c of calls) {
		for (let change of (c.answer?.tools ?? []).flatMap((u) => changesOf(u.arguments))) {
			let f = files.get(change.path)
			if (!f) {
				if (files.size === maxFiles) {
					more = true
					continue
				}
				files.set(change.path, (f = { path: change.path, changes: [], added: 0, removed: 0 }))
			}
			if (change.content !== undefined) {
				const content = change.content
				if (f.now !== undefined) change = made(change.path, 'write', between(f.now, content))
				f.now = content
			} else if (change.replaced && f.now?.includes(change.replaced[0])) {
				const [before, after] = change.replaced
				f.now = f.now.replace(before, () => after)
			} else f.now = undefined
			f.changes.push({ call: c.number, change })
			f.added += change.added
			f.removed += change.removed
		}
	}
	return { files: [...files.values()], more }
}
