// The console sends something each 5 s.
const silentFor = 20_000

// listen follows a stream of server-sent events until the function that it returns is
// called. on has a function for the data of each event. A connection that ends, or that is
// silent, is opened again behind the last event. A browser has few connections to one host
// for all its tabs, so a tab that is not seen has none.
export function listen(path: string, on: Record<string, (data: any) => void>, tell: (state: 'live' | 'lost' | 'over') => void): () => void {
	let events: EventSource | null = null
	let last = ''
	let silent = 0
	const close = () => {
		clearTimeout(silent)
		events?.close()
		events = null
	}
	const heard = () => {
		clearTimeout(silent)
		silent = window.setTimeout(() => {
			tell('lost')
			connect()
		}, silentFor)
	}
	const connect = () => {
		close()
		const now = (events = new EventSource(path + (last ? '?after=' + encodeURIComponent(last) : '')))
		heard()
		now.onopen = () => tell('live')
		now.onerror = () => {
			const over = now.readyState === EventSource.CLOSED // else the browser tries again
			if (over) clearTimeout(silent)
			tell(over ? 'over' : 'lost')
		}
		now.addEventListener('beat', heard)
		for (const [name, take] of Object.entries(on))
			now.addEventListener(name, (e) => {
				heard()
				last = e.lastEventId || last
				take(JSON.parse(e.data))
			})
	}
	const seen = () => {
		if (document.visibilityState === 'hidden') close()
		else if (!events) connect()
	}
	document.addEventListener('visibilitychange', seen)
	seen()
	return () => {
		document.removeEventListener('visibilitychange', seen)
		close()
	}
}
