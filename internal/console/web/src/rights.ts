// The rights of this browser, and the writes that need them.
import { signal } from '@preact/signals'
import { Away, awayFor, load, shared } from './load'

export interface Rights {
	system: boolean // one that runs is shown
	token: string
	role: 'viewer' | 'operator'
	// The reason for which a thing is refused; empty: it is allowed.
	read: string
	cancel: string
	retry: string
	requeue: string
}

// null: they are not known yet.
export const rights = signal<Rights | null>(null)

// learnRights asks for the rights, now and whenever they may have changed. A shared file
// has none.
export function learnRights() {
	if (shared) return
	let timer = 0
	const later = (ms: number) => {
		clearTimeout(timer)
		timer = window.setTimeout(ask, ms)
	}
	const ask = () => {
		later(15_000)
		if (document.visibilityState === 'hidden') return
		load<Rights>('/api/rights').then(
			(now) => (rights.value = now),
			(e) => e instanceof Away && later(awayFor),
		)
	}
	ask()
	document.addEventListener('visibilitychange', ask)
}

export interface Outcome {
	done: number
	failed: number
	errors: string[]
	new: string[]
}

// parts is the number of things in one write.
const parts = { cancel: 10_000, retry: 100, requeue: 100 }

// send writes to the console, and returns its answer. The session may be another one than
// when this page was loaded, so its token is asked for.
export async function send<T>(path: string, body: unknown): Promise<T> {
	const { token } = await load<Rights>('/api/rights')
	const answer = await fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Turngate-Token': token }, body: JSON.stringify(body) })
	if (!answer.ok) throw new Error((await answer.text()).trim())
	return answer.json()
}

// act sends a write in parts and adds up the outcomes. It ends at the first write that is refused.
export async function act<T>(what: 'cancel' | 'retry' | 'requeue', field: 'ids' | 'seqs', list: T[]): Promise<Outcome> {
	const out: Outcome = { done: 0, failed: 0, errors: [], new: [] }
	const part = parts[what]
	for (let i = 0; i < list.length; i += part) {
		try {
			const got = await send<Outcome>('/api/' + what, { [field]: list.slice(i, i + part) })
			out.done += got.done
			out.failed += got.failed
			out.errors.push(...got.errors)
			out.new.push(...got.new)
		} catch (e) {
			out.failed += list.length - i
			out.errors.push((e as Error).message)
			break
		}
	}
	return out
}
