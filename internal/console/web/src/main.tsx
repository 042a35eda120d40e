import { render } from 'preact'
import { Group } from './group'
import { Rollout } from './rollout'
import { Rollouts } from './rollouts'
import { go, home, link, path, source, start, trouble } from './store'
import './style.css'

function App() {
	const at = path.value
	const rollout = /^\/rollout\/([^/]+)$/.exec(at)?.[1]
	return (
		<>
			<header>
				<a class="brand" href="/">
					turngate
				</a>
				<span class="source">{source.value}</span>
				<span class={'link ' + link.value} role="status">
					{link.value}
				</span>
			</header>
			{link.value === 'over' ? <p class="alert" role="alert">The session has ended. Open the URL that turngate printed last.</p> : null}
			{trouble.value ? <p class="alert" role="alert">{trouble.value}</p> : null}
			{rollout !== undefined ? <Rollout key={rollout} id={rollout} /> : at === '/group' ? <Group /> : <Rollouts />}
		</>
	)
}

addEventListener('keydown', (e) => {
	const typing = e.target instanceof HTMLInputElement || e.target instanceof HTMLSelectElement
	if (e.key === '/' && !typing) {
		document.getElementById('text')?.focus()
		e.preventDefault()
	} else if (e.key === 'Escape' && typing) {
		;(document.querySelector('.table') as HTMLElement | null)?.focus()
	} else if (e.key === 'Escape' && path.value !== '/') {
		go(home())
	}
})

start()
render(<App />, document.getElementById('app')!)
