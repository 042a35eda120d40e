// Pictures of figures.
import { reward } from './format'
import { Section } from './page'

// Rewards shows the number of rollouts by reward; null is an unknown one.
export function Rewards({ rewards, mean, title = 'Rewards' }: { rewards: (number | null)[]; mean: number | null; title?: string }) {
	const known = rewards.filter((r) => r !== null)
	if (known.length === 0) return null
	const low = known.reduce((a, b) => Math.min(a, b), 0)
	const high = known.reduce((a, b) => Math.max(a, b), 1)
	const bins = 20
	const heights = new Array<number>(bins).fill(0)
	for (const r of known) {
		const at = Math.min(bins - 1, Math.floor(((r - low) / (high - low)) * bins))
		heights[at] = heights[at]! + 1
	}
	const most = Math.max(...heights)
	const x = (r: number) => ((r - low) / (high - low)) * 400
	const unknown = rewards.length - known.length
	return (
		<Section title={title}>
			<svg class="plot" viewBox="0 0 420 130" role="img" aria-label={`${known.length} rewards from ${reward(known.reduce((a, b) => Math.min(a, b)))} to ${reward(known.reduce((a, b) => Math.max(a, b)))}`}>
				<g transform="translate(10 14)">
					{heights.map((n, i) =>
						n ? (
							<g key={i} class="bin">
								<title>{`${n} of ${known.length}: from ${reward(low + ((high - low) * i) / bins)} to ${reward(low + ((high - low) * (i + 1)) / bins)}`}</title>
								<rect x={(i * 400) / bins + 1} y={90 - (90 * n) / most} width={400 / bins - 2} height={(90 * n) / most} />
								<text x={((i + 0.5) * 400) / bins} y={86 - (90 * n) / most}>
									{n}
								</text>
							</g>
						) : null,
					)}
					<line class="axis" x1={0} x2={400} y1={90} y2={90} />
					{mean === null ? null : <line class="mean" x1={x(mean)} x2={x(mean)} y1={-4} y2={94} />}
					<text x={4} y={106}>
						{reward(low)}
					</text>
					<text x={394} y={106}>
						{reward(high)}
					</text>
				</g>
			</svg>
			{unknown ? <p class="about">{unknown} without a known reward</p> : null}
		</Section>
	)
}

// Passes shows the chance that one of k rollouts passes, for each k.
export function Passes({ at }: { at: Record<string, number> | undefined }) {
	const points = Object.entries(at ?? {})
		.map(([k, p]): [number, number] => [Number(k), p])
		.sort((a, b) => a[0] - b[0])
	const first = points[0]
	const last = points.at(-1)
	if (!first || !last) return <>-</>
	const text = ([k, p]: [number, number]) => 'pass@' + k + ' ' + reward(p)
	const all = points.map(text).join(', ')
	const x = (k: number) => 4 + (Math.log2(k / first[0]) / (Math.log2(last[0] / first[0]) || 1)) * 92
	const y = (p: number) => 26 - p * 22
	return (
		<>
			{points.length > 1 ? (
				<svg class="curve" viewBox="0 0 100 30" role="img" aria-label={all}>
					<title>{all}</title>
					<line class="axis" x1={0} x2={100} y1={y(0)} y2={y(0)} />
					<line class="axis" x1={0} x2={100} y1={y(1)} y2={y(1)} />
					<polyline points={points.map(([k, p]) => x(k) + ',' + y(p)).join(' ')} />
					{points.map(([k, p]) => (
						<circle key={k} cx={x(k)} cy={y(p)} r={2} />
					))}
				</svg>
			) : null}
			<small>{points.length > 1 ? text(first) + ' … ' + text(last) : text(first)}</small>
		</>
	)
}

// Bar shows a value as a part of the largest one.
export function Bar({ value, most, text }: { value: number; most: number; text: string }) {
	return (
		<div class="measure">
			<span class="lane">
				{value > 0 ? <span class="bar" style={{ width: (100 * value) / most + '%' }} /> : null}
			</span>
			<span>{text}</span>
		</div>
	)
}
