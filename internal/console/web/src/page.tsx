// Parts that pages have in common.
import { useEffect, useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import { Away, awayFor, load, Over } from './load'
import { follow, href } from './store'

// useLoaded loads a value again when path or again change, and after an error that may be
// over; the old value stays meanwhile.
export function useLoaded<T>(path: string, again: string): [T | null, string] {
	const [value, set] = useState<{ path: string; value: T } | null>(null)
	const [error, setError] = useState('')
	useEffect(() => {
		let current = true
		let timer = 0
		const next = async () => {
			try {
				const value = await load<T>(path)
				if (!current) return
				set({ path, value })
				setError('')
			} catch (e) {
				if (!current) return
				setError(e instanceof Over ? '' : (e as Error).message)
				if (e instanceof Away) timer = window.setTimeout(next, awayFor)
			}
		}
		next()
		return () => {
			current = false
			clearTimeout(timer)
		}
	}, [path, again])
	return [value !== null && value.path === path ? value.value : null, error]
}

// useTitle names the tab.
export function useTitle(title: string) {
	useEffect(() => {
		document.title = title + ' · turngate'
	}, [title])
}

// Values lists names with their values; a name without a value is left out.
export function Values({ values }: { values: [string, ComponentChildren][] }) {
	return (
		<dl class="facts">
			{values.map(([name, value]) =>
				value ? (
					<div key={name}>
						<dt>{name}</dt>
						<dd>{value}</dd>
					</div>
				) : null,
			)}
		</dl>
	)
}

// Id is an id, which does not break; a narrow page scrolls it.
export const Id = ({ text }: { text: string }) => <span class="whole">{text}</span>

export function Section({ title, children }: { title: string; children: ComponentChildren }) {
	return (
		<section aria-label={title}>
			<h2>{title}</h2>
			{children}
		</section>
	)
}

// Grid is a table. The keyboard scrolls one that is wider than the page.
export function Grid({ name, head, children }: { name: string; head: string[]; children: ComponentChildren }) {
	return (
		<div class="wide" tabIndex={0} role="group" aria-label={name}>
			<table class="grid">
				<thead>
					<tr>
						{head.map((title, i) => (
							<th key={i} scope="col">
								{title}
							</th>
						))}
					</tr>
				</thead>
				<tbody>{children}</tbody>
			</table>
		</div>
	)
}

// Link leads to another page of this console.
export function Link({ to, children, ...rest }: { to: string; children: ComponentChildren; tabIndex?: number; title?: string; class?: string; 'aria-current'?: 'page' }) {
	return (
		<a {...rest} href={href(to)} onClick={(e) => follow(e, to)}>
			{children}
		</a>
	)
}
