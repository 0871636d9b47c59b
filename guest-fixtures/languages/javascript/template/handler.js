import { shouldStop } from 'sandglass:integration/clock@0.1.1';
import { send } from 'sandglass:integration/http@0.1.1';
import * as log from 'sandglass:integration/log@0.1.1';

// Runs once for each dispatch. What it returns goes to the action that the spec names as
// `on_success`; what it throws as `failure(...)`, to `on_failure`.
export function handle({ triggerParams }) {
  const { name, url } = JSON.parse(triggerParams);
  if (typeof name !== 'string') throw failure('`name` is missing, or no string');
  const params = { hello: name };

  // Near the deadline it is time to answer what there is.
  if (typeof url === 'string' && !shouldStop()) {
    log.write('info', `asking ${url}`);
    params.status = get(url).status;
  }
  return { params: JSON.stringify(params) };
}

// Of a host that integration.toml grants.
function get(url) {
  try {
    return send({ head: { method: 'GET', url, headers: [] }, body: new Uint8Array() });
  } catch ({ payload: { tag, val } }) {
    throw failure(`${tag}: ${val}`);
  }
}

function failure(reason) {
  return { tag: 'plain', val: reason };
}
