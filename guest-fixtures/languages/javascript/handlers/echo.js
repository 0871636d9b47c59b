// Answers the text that it was given.
export function handle({ triggerParams, attempt }) {
  const { text } = JSON.parse(triggerParams);
  if (typeof text !== 'string') throw { tag: 'plain', val: '`text` is missing, or no string' };
  return { params: JSON.stringify({ text, attempt }) };
}
