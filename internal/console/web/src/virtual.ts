// A list of which only the visible rows are elements of the page.
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from '@tanstack/virtual-core'
import { useLayoutEffect, useReducer, useRef } from 'preact/hooks'
import type { RefObject } from 'preact'

export function useRows(scroll: RefObject<HTMLElement | null>, count: number, height: number): Virtualizer<HTMLElement, Element> {
	const [, again] = useReducer((n: number) => n + 1, 0)
	const options = {
		count,
		getScrollElement: () => scroll.current,
		estimateSize: () => height,
		overscan: 12,
		observeElementRect,
		observeElementOffset,
		scrollToFn: elementScroll,
		onChange: () => again(0),
	}
	const kept = useRef<Virtualizer<HTMLElement, Element>>(null)
	const list = kept.current ?? (kept.current = new Virtualizer<HTMLElement, Element>(options))
	list.setOptions(options)
	useLayoutEffect(() => list._didMount(), [])
	useLayoutEffect(() => list._willUpdate())
	useLayoutEffect(() => list.measure(), [height])
	return list
}
