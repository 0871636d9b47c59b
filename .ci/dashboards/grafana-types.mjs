// Writes a Grafana dashboard (JSON, the first argument) as a TypeScript literal of the types
// that Grafana publishes, for the compiler to check: keys, kinds and the values of enums.
import { readFileSync } from 'node:fs';

const { panels, templating, ...board } = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const types = { row: 'RowPanel', timeseries: 'TimeSeriesPanel', stat: 'StatPanel' };

const typed = panels.map((panel) => {
  const { targets, ...rest } = panel;
  if (!types[panel.type]) throw new Error(`${panel.title}: no type is known for ${panel.type}`);
  const literal = JSON.stringify(rest, null, 2);
  const queries = JSON.stringify(targets ?? [], null, 2);
  return `const panel${panel.id}: Plain<${types[panel.type]}> = ${literal};
const queries${panel.id}: Plain<Query>[] = ${queries};
`;
});

console.log(`import type * as grafana from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// In JSON, an enum is one of its texts or numbers.
type Plain<T> = T extends string
  ? \`\${T}\`
  : T extends number
    ? (\`\${T}\` extends \`\${infer N extends number}\` ? N : never)
    : T extends (infer Item)[]
      ? Plain<Item>[]
      : T extends object
        ? { [Key in keyof T]: Plain<T[Key]> }
        : T;

// Grafana adds the defaults that a panel leaves out.
interface Typed<Options, Custom> extends Omit<grafana.Panel, 'options' | 'fieldConfig' | 'targets'> {
  options: Partial<Options>;
  fieldConfig: Omit<grafana.FieldConfigSource, 'defaults'> & {
    defaults: Omit<grafana.FieldConfig, 'custom'> & { custom?: Custom };
  };
}
type TimeSeriesPanel = Typed<timeseries.Options, timeseries.FieldConfig>;
type StatPanel = Typed<stat.Options, never>;
type RowPanel = grafana.RowPanel;
// Grafana writes the definition of a query variable, but its types lack it.
interface Variable extends grafana.VariableModel {
  definition?: string;
}
// The options of the Prometheus data source, for which Grafana publishes no types.
interface Query extends grafana.DataQuery {
  datasource: { type: 'prometheus'; uid: string };
  editorMode: 'code' | 'builder';
  expr: string;
  instant: boolean;
  legendFormat: string;
  range: boolean;
}

const board: Plain<Omit<grafana.Dashboard, 'panels' | 'templating'>> = ${JSON.stringify(board, null, 2)};
const variables: Plain<Variable>[] = ${JSON.stringify(templating.list, null, 2)};
${typed.join('')}`);
