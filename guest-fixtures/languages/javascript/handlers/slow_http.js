// Asks a server that takes its time, and answers what it said.
import { send } from 'sandglass:integration/http@0.1.1';
import { setStatus } from 'sandglass:integration/progress@0.1.1';

export function handle({ triggerParams }) {
  const { url } = JSON.parse(triggerParams);
  setStatus('waiting for the server');
  const { status, body } = get(url);
  return { params: JSON.stringify({ status, body: new TextDecoder().decode(body) }) };
}

function get(url) {
  try {
    return send({ head: { method: 'GET', url, headers: [] }, body: new Uint8Array() });
  } catch ({ payload: { tag, val } }) {
    throw { tag: 'plain', val: `${tag}: ${val}` };
  }
}
