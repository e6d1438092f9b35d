// Grafana's published types of a dashboard, as JSON has them: an enum member is written as its value.
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen.d.ts';
import type * as stateTimeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen.d.ts';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen.d.ts';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen.d.ts';
import type * as timeSeries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen.d.ts';
import type * as raw from '@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen.d.ts';

type Plain<T> = T extends string
  ? `${T}`
  : T extends number
    ? `${T}` extends `${infer N extends number}` ? N : never
    : T extends Array<infer E>
      ? Array<Plain<E>>
      : T extends object
        ? { [K in keyof T]: Plain<T[K]> }
        : T;

type Defaults<C> = Omit<Plain<raw.FieldConfig>, 'custom'> & { custom?: Plain<C> };
type Target = {
  datasource: raw.DataSourceRef;
  refId: string;
  expr: string;
  legendFormat: string;
  format: 'table' | 'time_series';
  instant: boolean;
  range: boolean;
  editorMode: 'code';
};
type Panel<T extends string, O, C> = Omit<Plain<raw.Panel>, 'type' | 'options' | 'fieldConfig' | 'targets'> & {
  type: T;
  options: Plain<O>;
  fieldConfig: Omit<Plain<raw.FieldConfigSource>, 'defaults'> & { defaults: Defaults<C> };
  targets: Target[];
};
type KnownPanel =
  | Panel<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Panel<'stat', stat.Options, never>
  | Panel<'state-timeline', stateTimeline.Options, stateTimeline.FieldConfig>
  | Panel<'table', table.Options, table.FieldConfig>
  | Panel<'timeseries', timeSeries.Options, timeSeries.FieldConfig>;
type Row = Omit<Plain<raw.RowPanel>, 'panels'> & { panels: KnownPanel[] };

// The Prometheus data source's own fields of an annotation query, which the schema leaves to it.
type Annotation = Plain<raw.AnnotationQuery> & {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  tagKeys: string;
  useValueForTime: 'on' | false;
};

export type Dashboard = Omit<Plain<raw.Dashboard>, 'panels' | 'annotations'> & {
  panels: Array<KnownPanel | Row>;
  annotations: { list: Annotation[] };
};
