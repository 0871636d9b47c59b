// Makes a component of a handler and all that it imports:
//   node build.mjs [HANDLER [WIT_FOLDER [OUT]]]
import { writeFile } from 'node:fs/promises';
import { componentize } from '@bytecodealliance/componentize-js';

const [handler = 'handler.js', wit = 'wit', out = '{{name}}.wasm'] = process.argv.slice(2);
const { component } = await componentize({ sourcePath: handler, witPath: wit, worldName: 'integration' });
await writeFile(out, component);
console.log(`${out}: ${(component.length / 1e6).toFixed(1)} MB`);
