// Builds the pages into dist, which is committed, so that Go builds them in without Node.
import { build } from 'esbuild'

await build({
	entryPoints: { app: 'src/main.tsx' },
	outdir: 'dist',
	bundle: true,
	minify: true,
	format: 'iife',
	target: 'es2022',
	legalComments: 'inline',
	jsx: 'automatic',
	jsxImportSource: 'preact',
	define: { 'process.env.NODE_ENV': '"production"' },
	logLevel: 'warning',
})
