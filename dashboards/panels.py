"""Building blocks of the three dashboards: queries, panels, variables, links.

Here: how a panel looks and what every panel must have (a unit, a description that names its
metrics, the datasource variable). Not here: which panels there are (one module per dashboard).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dash
from grafana_foundation_sdk.builders import heatmap as heatmap_builder
from grafana_foundation_sdk.builders import prometheus as prom
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline as timeline_builder
from grafana_foundation_sdk.builders import table as table_builder
from grafana_foundation_sdk.builders import text as text_builder
from grafana_foundation_sdk.builders import timeseries as timeseries_builder
from grafana_foundation_sdk.models import common, heatmap, text
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
NO_VALUE = "no traffic"
"""What an empty stat says. Rules give no sample without traffic, so this is a fact, not a fault."""

GREEN, AMBER, RED, BLUE = "green", "orange", "red", "blue"
_METRIC = re.compile(r"\b(?:[a-z_]+:)?(?:breakeven|loadgen)_[a-z0-9_]+(?::[a-z0-9_]+)?")


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL query of a panel.

    Attributes:
        expr: PromQL; may use $job, $arm, $cohort.
        legend: Grafana legend template, `{{arm}}`.
        instant: one value now (tables, stats) rather than a range.
    """

    expr: str
    legend: str = ""
    instant: bool = False


def metrics_of(queries: Sequence[Query]) -> list[str]:
    """The metric names that a panel's queries read, each once, in order."""
    found = [name for query in queries for name in _METRIC.findall(query.expr)]
    return list(dict.fromkeys(found))


def describe(words: str, queries: Sequence[Query]) -> str:
    """A panel's description: what it means, then the metrics it is drawn from."""
    names = ", ".join(f"`{name}`" for name in metrics_of(queries))
    return f"{words}\n\nMetrics: {names}" if names else words


def _target(query: Query, index: int, *, table: bool = False, heat: bool = False) -> prom.Dataquery:
    built = prom.Dataquery().expr(query.expr).ref_id(chr(ord("A") + index)).datasource(DATASOURCE)
    if query.legend:
        built = built.legend_format(query.legend)
    if heat:
        built = built.format(PromQueryFormat.HEATMAP)
    if table:
        return built.format(PromQueryFormat.TABLE).instant()
    return built.instant() if query.instant else built.range()


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> dash.ThresholdsConfig:
    return (
        dash.ThresholdsConfig()
        .mode(model.ThresholdsMode.ABSOLUTE)
        .steps([model.Threshold(value=value, color=color) for value, color in steps])
    )


def _legend() -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def graph(
    title: str,
    words: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    span: int = 12,
    height: int = 8,
    stacked: bool = False,
    soft: tuple[float, float] | None = None,
    steps: Sequence[tuple[float | None, str]] | None = None,
    dashed: str | None = None,
) -> timeseries_builder.Panel:
    """A graph over time; `steps` are drawn as lines, series matching regex `dashed` are dashed."""
    panel = (
        timeseries_builder.Panel()
        .title(title)
        .description(describe(words, queries))
        .datasource(DATASOURCE)
        .targets([_target(query, i) for i, query in enumerate(queries)])
        .unit(unit)
        .span(span)
        .height(height)
        .no_value(NO_VALUE)
        .line_width(2)
        .fill_opacity(60 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .span_nulls(120000)
        .legend(_legend())
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if soft:
        panel = panel.axis_soft_min(soft[0]).axis_soft_max(soft[1])
    if steps:
        panel = panel.thresholds(_thresholds(steps)).thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(
                common.GraphThresholdsStyleMode.DASHED
            )
        )
    if dashed:
        dashes = {"fill": "dash", "dash": [10, 10]}
        panel = panel.override_by_regexp(
            dashed, [model.DynamicConfigValue(id_val="custom.lineStyle", value=dashes)]
        )
    return panel


def stat(
    title: str,
    words: str,
    queries: Sequence[Query],
    *,
    unit: str = "short",
    span: int = 6,
    height: int = 5,
    decimals: int | None = None,
    steps: Sequence[tuple[float | None, str]] = ((None, BLUE),),
    mappings: Sequence[tuple[str, str, str]] = (),
) -> stat_builder.Panel:
    """One big number per series, with the sparkline behind it."""
    panel = (
        stat_builder.Panel()
        .title(title)
        .description(describe(words, queries))
        .datasource(DATASOURCE)
        .targets([_target(query, i) for i, query in enumerate(queries)])
        .unit(unit)
        .span(span)
        .height(height)
        .no_value(NO_VALUE)
        .thresholds(_thresholds(steps))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )
    if decimals is not None:
        panel = panel.decimals(decimals)
    if mappings:
        panel = panel.mappings([value_map(mappings)])
    return panel


def value_map(rows: Sequence[tuple[str, str, str]]) -> model.ValueMap:
    """Rows of (value, text, colour)."""
    return model.ValueMap(
        options={
            value: model.ValueMappingResult(text=words, color=color, index=i)
            for i, (value, words, color) in enumerate(rows)
        }
    )


def table(
    title: str,
    words: str,
    columns: Sequence[tuple[str, Query, str]],
    *,
    span: int = 24,
    height: int = 8,
    mappings: dict[str, Sequence[tuple[str, str, str]]] | None = None,
    hide: Sequence[str] = ("Time", "job"),
) -> table_builder.Panel:
    """One row per label set; one query per column of (heading, query, unit)."""
    queries = [query for _, query, _ in columns]
    renamed = {f"Value #{chr(ord('A') + i)}": heading for i, (heading, _, _) in enumerate(columns)}
    panel = (
        table_builder.Panel()
        .title(title)
        .description(describe(words, queries))
        .datasource(DATASOURCE)
        .targets([_target(query, i, table=True) for i, query in enumerate(queries)])
        .span(span)
        .height(height)
        .no_value(NO_VALUE)
        .filterable(True)
        .with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            model.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": dict.fromkeys((*hide, "__name__"), True),
                    "renameByName": renamed if len(columns) > 1 else {"Value": columns[0][0]},
                },
            )
        )
    )
    for heading, _, unit in columns:
        properties = [model.DynamicConfigValue(id_val="unit", value=unit)]
        if mappings and heading in mappings:
            options = {
                value: {"text": words_, "color": color, "index": i}
                for i, (value, words_, color) in enumerate(mappings[heading])
            }
            properties += [
                model.DynamicConfigValue(
                    id_val="mappings", value=[{"type": "value", "options": options}]
                ),
                model.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
            ]
        panel = panel.override_by_name(heading, properties)
    return panel


def heat(
    title: str, words: str, query: Query, *, unit: str = "s", span: int = 12, height: int = 9
) -> heatmap_builder.Panel:
    """Classic histogram buckets over time; the query sums increases by `le`."""
    return (
        heatmap_builder.Panel()
        .title(title)
        .description(describe(words, [query]))
        .datasource(DATASOURCE)
        .targets([_target(query, 0, heat=True)])
        .span(span)
        .height(height)
        .calculate(False)
        .y_axis(heatmap_builder.YAxisConfig().unit(unit))
        .color(
            heatmap_builder.HeatmapColorOptions()
            .mode(heatmap.HeatmapColorMode.SCHEME)
            .scheme("Spectral")
            .steps(64)
        )
        .cell_gap(1)
        .show_legend()
    )


def timeline(
    title: str,
    words: str,
    queries: Sequence[Query],
    *,
    mappings: Sequence[tuple[str, str, str]],
    span: int = 12,
    height: int = 7,
) -> timeline_builder.Panel:
    """States over time, one lane per series."""
    return (
        timeline_builder.Panel()
        .title(title)
        .description(describe(words, queries))
        .datasource(DATASOURCE)
        .targets([_target(query, i) for i, query in enumerate(queries)])
        .span(span)
        .height(height)
        .no_value(NO_VALUE)
        .mappings([value_map(mappings)])
        .line_width(0)
        .fill_opacity(70)
        .merge_values(True)
        .show_value(common.VisibilityMode.AUTO)
    )


def words_panel(title: str, content: str, *, span: int = 12, height: int = 8) -> text_builder.Panel:
    """Markdown."""
    return (
        text_builder.Panel()
        .title(title)
        .description("How to read the panels beside it.")
        .mode(text.TextMode.MARKDOWN)
        .content(content)
        .span(span)
        .height(height)
    )


def variables(names: Sequence[str]) -> list[dash.QueryVariable | dash.DatasourceVariable]:
    """`datasource`, then those of job, arm, cohort that are asked for; arm and cohort are multi."""
    made: list[dash.QueryVariable | dash.DatasourceVariable] = [
        dash.DatasourceVariable("datasource").label("Datasource").type("prometheus")
    ]
    queries = {
        "job": ("Service (job)", "label_values(breakeven_arm_info, job)", False),
        "arm": ("Arm", 'label_values(breakeven_arm_info{job=~"$job"}, arm)', True),
        "cohort": (
            "Cohort",
            'label_values(breakeven_decode_tokens_total{job=~"$job"}, cohort)',
            True,
        ),
    }
    for name in names:
        label, query, multi = queries[name]
        variable = (
            dash.QueryVariable(name)
            .label(label)
            .datasource(DATASOURCE)
            .query({"query": query, "refId": name, "qryType": 1})
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.ALPHABETICAL_ASC)
            .multi(multi)
            .include_all(True)
            .all_value(".*")
            .current(model.VariableOption(selected=True, text="All", value="$__all"))
        )
        made.append(variable)
    return made


def board(title: str, uid: str, words: str, names: Sequence[str]) -> dash.Dashboard:
    """An empty dashboard with our variables, links and the firing alerts as annotations."""
    made = (
        dash.Dashboard(title)
        .uid(uid)
        .description(words)
        .tags(["breakeven"])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .editable()
        .link(
            dash.DashboardLink("Breakeven dashboards")
            .type(model.DashboardLinkType.DASHBOARDS)
            .tags(["breakeven"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .annotation(
            dash.AnnotationQuery()
            .name("Firing alerts")
            .datasource(DATASOURCE)
            .enable(True)
            .icon_color(RED)
            .expr('ALERTS{alertstate="firing"}')
        )
    )
    for variable in variables(names):
        made = made.with_variable(variable)
    return made
