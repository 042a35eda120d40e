// Reads the server's answers, or those that a shared file has.

const app = document.getElementById('app')!

// first is the page with which a shared file begins; empty: this is no shared file.
export const first = app.dataset.start ?? ''
export const shared = first !== ''

// Away is an error that may be over soon: the console, or the server behind it, does not
// answer.
export class Away extends Error {}

// Over is the end of this browser's session, of which the head of the page tells.
export class Over extends Error {}

export const awayFor = 2000 // ms after which a page tries again

export async function load<T>(path: string): Promise<T> {
	if (shared) return loadShared(path)
	const answer = await fetch(path).catch(() => {
		throw new Away('The console does not answer.')
	})
	if (answer.ok) return answer.json()
	const text = (await answer.text()).trim()
	if (answer.status === 401) throw new Over(text)
	throw answer.status >= 500 ? new Away(text) : new Error(text)
}

let answers: Map<string, string> | null = null // by their paths, as base64 of gzip

async function loadShared<T>(path: string): Promise<T> {
	if (!answers) {
		answers = new Map()
		for (const e of document.querySelectorAll<HTMLElement>('script[data-path]')) answers.set(e.dataset.path!, e.textContent ?? '')
	}
	const url = new URL(path, 'http://here')
	const parts = url.pathname.slice(1).split('/').map(decodeURIComponent)
	const values = [...url.searchParams].map(([name, value]) => name + '=' + value).sort()
	const text = answers.get([...parts, ...values].join('\n'))
	if (text === undefined) throw new Error('This is not in the shared file: it would have been too large, or has a text that is masked.')
	const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
	return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'))).json()
}
