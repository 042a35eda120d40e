// A question before a write, and the outcome after it.
import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Outcome } from './rights'

interface Question {
	text: string
	yes: string
	does: () => Promise<Outcome>
	done: (o: Outcome) => string
}

const question = signal<Question | null>(null)
const outcome = signal<{ text: string; errors: string[] } | null>(null)

// ask shows a question, and does its work after a yes.
export function ask(q: Question) {
	outcome.value = null
	question.value = q
}

export function Confirm() {
	const q = question.value
	return (
		<>
			{q ? <Dialog key={q.text} q={q} /> : null}
			{outcome.value ? (
				<div class="outcome" role="status">
					<span>
						{outcome.value.text}
						{outcome.value.errors.map((e, i) => (
							<span class="fault" key={i}>
								{' '}
								{e}
							</span>
						))}
					</span>
					<button aria-label="Close" onClick={() => (outcome.value = null)}>
						×
					</button>
				</div>
			) : null}
		</>
	)
}

function Dialog({ q }: { q: Question }) {
	const dialog = useRef<HTMLDialogElement>(null)
	const [busy, setBusy] = useState(false)
	useEffect(() => dialog.current?.showModal(), [])
	const work = async () => {
		setBusy(true)
		const o = await q.does()
		outcome.value = { text: q.done(o) + (o.failed ? ', ' + o.failed + ' failed' : ''), errors: o.errors.slice(0, 10) }
		dialog.current?.close()
	}
	return (
		<dialog ref={dialog} class="confirm" onClose={() => (question.value = null)} onKeyDown={(e) => e.stopPropagation()}>
			<p>{q.text}</p>
			<p class="buttons">
				<button disabled={busy} onClick={() => dialog.current?.close()}>
					No
				</button>
				<button class="yes" disabled={busy} onClick={work}>
					{busy ? 'Working …' : q.yes}
				</button>
			</p>
		</dialog>
	)
}
