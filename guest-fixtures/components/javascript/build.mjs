// Makes a component of handler.js: node build.mjs WIT_FOLDER OUT
import { readFile, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { componentize } from '@bytecodealliance/componentize-js';

const [witPath, out] = process.argv.slice(2);
const source = await readFile(fileURLToPath(new URL('handler.js', import.meta.url)), 'utf8');
const { component } = await componentize(source, { witPath, worldName: 'integration' });
await writeFile(out, component);
