import { render, type VNode } from 'preact'
import { useEffect } from 'preact/hooks'
import { Confirm } from './confirm'
import { Group } from './group'
import { free, inField } from './keys'
import { Compare, Job, Jobs } from './jobs'
import { New } from './new'
import { Link, useTitle } from './page'
import { learnRights, rights } from './rights'
import { Rollout } from './rollout'
import { Rollouts } from './rollouts'
import { go, home, href, jobs, link, path, plays, source, start, trouble } from './store'
import { Queue, Trainers, Workers } from './system'
import './style.css'

const pages: Record<string, () => VNode> = {
	'/group': () => <Group />,
	'/jobs': () => <Jobs />,
	'/job': () => <Job />,
	'/compare': () => <Compare />,
	'/workers': () => <Workers />,
	'/queue': () => <Queue />,
	'/trainers': () => <Trainers />,
	'/new': () => <New />,
}

function NoPage() {
	useTitle('No page')
	return (
		<main class="page" tabIndex={-1}>
			<h1>There is no page {path.value}</h1>
			<p>
				<Link to={home()}>The rollouts</Link>
			</p>
		</main>
	)
}

// place is a link in the head of the page.
const place = (at: string, path: string, name: string, to = path) => (
	<Link to={to} aria-current={at === path ? 'page' : undefined}>
		{name}
	</Link>
)

function App() {
	const at = path.value
	const rollout = /^\/rollout\/([^/]+)$/.exec(at)?.[1]
	const page = pages[at]
	const reads = rights.value?.system && !rights.value.read
	useEffect(() => { // so that keys scroll it
		;(document.querySelector('.table, main') as HTMLElement | null)?.focus({ preventScroll: true })
	}, [at])
	return (
		<>
			<header>
				<a class="brand" href={href('/')}>
					turngate
				</a>
				{jobs.value || reads || plays.value ? (
					<nav class="places" aria-label="Pages">
						{place(at, '/', 'Rollouts', home())}
						{jobs.value ? place(at, '/jobs', 'Jobs') : null}
						{reads ? (
							<>
								{place(at, '/workers', 'Workers')}
								{place(at, '/queue', 'Queue')}
								{place(at, '/trainers', 'Trainers')}
							</>
						) : null}
						{plays.value ? place(at, '/new', 'Run a rollout') : null}
					</nav>
				) : null}
				<span class="source">{source.value}</span>
				{rights.value?.system ? <span class="rolename">{rights.value.role}</span> : null}
				<span class={'link ' + link.value} role="status">
					{link.value}
				</span>
			</header>
			{link.value === 'over' ? <p class="alert" role="alert">The session has ended. Open the URL that turngate printed last.</p> : null}
			{trouble.value ? <p class="alert" role="alert">{trouble.value}</p> : null}
			{rollout !== undefined ? <Rollout key={rollout} id={rollout} /> : page ? page() : at === '/' ? <Rollouts /> : <NoPage />}
			<Confirm />
		</>
	)
}

addEventListener('keydown', (e) => {
	if (e.key === '/' && free(e)) {
		document.getElementById('text')?.focus()
		e.preventDefault()
	} else if (e.key === 'Escape' && inField(e)) {
		if (path.value === '/') (document.querySelector('.table') as HTMLElement | null)?.focus()
		else (e.target as HTMLElement).blur()
	} else if (e.key === 'Escape' && free(e) && path.value !== '/') {
		go(home())
	}
})

start()
learnRights()
render(<App />, document.getElementById('app')!)
