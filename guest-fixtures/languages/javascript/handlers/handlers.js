// The four handlers as one component, since each would be 12 MB: which of them runs
// says the key `handler` of the integration in the spec.
import * as budget_aware from './budget_aware.js';
import * as echo from './echo.js';
import * as hang from './hang.js';
import * as slow_http from './slow_http.js';

const handlers = { budget_aware, echo, hang, slow_http };

export async function handle(context) {
  const name = new Map(context.integrationConfig).get('handler');
  if (!Object.hasOwn(handlers, name)) throw { tag: 'plain', val: `there is no handler ${name}` };
  return await handlers[name].handle(context);
}
