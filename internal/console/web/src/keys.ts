// The keys of pages.
import { useEffect, useRef } from 'preact/hooks'

// free tells that a key is the page's: no field has the focus, no question is open, and no
// other key is held.
export function free(e: KeyboardEvent): boolean {
	return !e.defaultPrevented && !e.ctrlKey && !e.metaKey && !e.altKey && !inField(e) && !document.querySelector('dialog[open]')
}

export const inField = (e: KeyboardEvent): boolean => e.target instanceof HTMLInputElement && e.target.type !== 'checkbox' || e.target instanceof HTMLSelectElement || e.target instanceof HTMLTextAreaElement

// presses tells that Enter presses the part of the page that has the focus.
export const presses = (e: KeyboardEvent): boolean => e.target instanceof HTMLElement && e.target.closest('a, button, summary') !== null

// useKeys takes the free keys wherever the focus is.
export function useKeys(take: (e: KeyboardEvent) => void) {
	const now = useRef(take)
	now.current = take
	useEffect(() => {
		const on = (e: KeyboardEvent) => {
			if (free(e)) now.current(e)
		}
		document.addEventListener('keydown', on)
		return () => document.removeEventListener('keydown', on)
	}, [])
}
