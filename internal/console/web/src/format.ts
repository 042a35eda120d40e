// Values as people read them.
import { signal } from '@preact/signals'

export function count(n: number): string {
	if (n < 10_000) return String(n)
	if (n < 1_000_000) return (n / 1000).toFixed(n < 100_000 ? 1 : 0) + 'k'
	return (n / 1_000_000).toFixed(1) + 'M'
}

export function reward(r: number | null): string {
	return r === null ? '' : String(Math.round(r * 10_000) / 10_000)
}

export function duration(ms: number | undefined): string {
	if (ms === undefined) return ''
	if (ms < 1000) return ms + ' ms'
	const s = ms / 1000
	if (s < 60) return s.toFixed(1) + ' s'
	const m = Math.floor(s / 60)
	if (m < 60) return m + ' m ' + Math.floor(s % 60) + ' s'
	return Math.floor(m / 60) + ' h ' + (m % 60) + ' m'
}

// today is the day of this host, by which times have a date.
export const today = signal(new Date().toDateString())
setInterval(() => (today.value = new Date().toDateString()), 60_000)

export function time(at: number | undefined): string {
	if (!at) return ''
	const d = new Date(at)
	const year = today.value.endsWith(String(d.getFullYear())) ? undefined : 'numeric'
	const day = d.toLocaleDateString(undefined, { month: 'short', day: 'numeric', year })
	return (d.toDateString() === today.value ? '' : day + ' ') + d.toLocaleTimeString(undefined, { hour12: false })
}

// dollars shows a cost; a part of a cent has two digits.
export function dollars(cost: number | null): string {
	if (cost === null) return '-'
	return '$' + (cost >= 0.1 || cost === 0 ? cost.toFixed(2) : cost.toPrecision(2))
}

// plural writes a count with its noun.
export const plural = (n: number, noun: string): string => n + ' ' + noun + (n === 1 ? '' : 's')
