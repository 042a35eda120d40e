// Builds the pages into dist, which is committed, so that Go builds them in without Node.
import { build } from 'esbuild'
import { readFileSync } from 'node:fs'

// The packages whose code is in app.js, with the licences that ask to be kept with it.
const licences = ['preact', '@preact/signals', '@tanstack/virtual-core', 'diff'].map((name) => name + '\n\n' + readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim())

await build({
	entryPoints: { app: 'src/main.tsx' },
	outdir: 'dist',
	bundle: true,
	minify: true,
	format: 'iife',
	target: 'es2022',
	legalComments: 'inline',
	footer: { js: '/*!\n' + licences.join('\n\n') + '\n*/' },
	jsx: 'automatic',
	jsxImportSource: 'preact',
	define: { 'process.env.NODE_ENV': '"production"' },
	logLevel: 'warning',
})
