//! One HTML file with charts, which needs nothing but itself.

use std::fmt::Write;

/// Values over time; the first is the first step's.
pub struct Series<'a> {
    /// Its name in the legend.
    pub name: &'a str,
    /// One value a step.
    pub values: Vec<f64>,
}

/// Something that went on for a while, shown behind the lines.
pub struct Mark {
    /// When it began, in seconds.
    pub from: f64,
    /// When it ended, in seconds.
    pub until: f64,
    /// Shown under the pointer.
    pub name: String,
}

/// Lines over seconds.
pub struct Chart<'a> {
    /// Above it.
    pub title: &'a str,
    /// What its values are.
    pub unit: &'a str,
    /// Decades instead of even steps.
    pub logarithmic: bool,
    /// From one value to the next.
    pub step_seconds: f64,
    /// What went on meanwhile.
    pub marks: Vec<Mark>,
    /// Its lines.
    pub series: Vec<Series<'a>>,
}

/// A group of bars, one for each contender.
pub struct Bars<'a> {
    /// Beside the group.
    pub name: &'a str,
    /// Contender and value.
    pub values: Vec<(&'a str, f64)>,
}

/// A page being written.
pub struct Page {
    body: String,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 30.0;
/// Classes `c0` to `c5` in the style sheet.
const COLOURS: usize = 6;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

impl Page {
    /// A page with a heading and a line below it.
    pub fn new(title: &str, subtitle: &str) -> Self {
        let (title, subtitle) = (escape(title), escape(subtitle));
        let body = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style></head><body>\n<h1>{title}</h1><p>{subtitle}</p>\n"
        );
        Self { body }
    }

    /// The few numbers that matter.
    pub fn figures(&mut self, figures: &[(&str, String)]) {
        self.body.push_str("<div class=\"figures\">\n");
        for (name, value) in figures {
            let _ = writeln!(self.body, "<div><span>{}</span><b>{}</b></div>", escape(name), escape(value));
        }
        self.body.push_str("</div>\n");
    }

    /// A heading.
    pub fn heading(&mut self, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(text));
    }

    /// Text as it stands.
    pub fn preformatted(&mut self, title: &str, text: &str) {
        let _ = writeln!(self.body, "<h2>{}</h2><pre>{}</pre>", escape(title), escape(text));
    }

    /// Rows under a head; those marked are set bold.
    pub fn table(&mut self, head: &[&str], rows: &[(bool, Vec<String>)]) {
        self.body.push_str("<div class=\"scroll\"><table><tr>");
        for cell in head {
            let _ = write!(self.body, "<th>{}</th>", escape(cell));
        }
        self.body.push_str("</tr>\n");
        for (marked, cells) in rows {
            self.body.push_str(if *marked { "<tr class=\"ours\">" } else { "<tr>" });
            for cell in cells {
                let _ = write!(self.body, "<td>{}</td>", escape(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</table></div>\n");
    }

    /// Lines over seconds, with the values under the pointer shown below.
    pub fn chart(&mut self, chart: &Chart<'_>) {
        let count = chart.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let scale = Scale::new(chart);
        let at = |second: usize| {
            LEFT + if count > 1 { (WIDTH - LEFT - RIGHT) * second as f64 / (count - 1) as f64 } else { 0.0 }
        };
        let data = serde_json::json!(
            chart
                .series
                .iter()
                .map(|line| serde_json::json!({ "name": line.name, "values": line.values }))
                .collect::<Vec<_>>()
        );
        let step = chart.step_seconds;
        let sizes = serde_json::json!({ "left": LEFT, "right": WIDTH - RIGHT, "count": count, "step": step });
        let (data, sizes) = (escape(&data.to_string()), escape(&sizes.to_string()));
        let body = &mut self.body;
        let _ = writeln!(body, "<h2>{} ({})</h2>", escape(chart.title), escape(chart.unit));
        let _ = writeln!(body, "<figure style=\"margin:0\" data-series=\"{data}\" data-scale=\"{sizes}\">");
        let _ = writeln!(
            body,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(chart.title)
        );
        for mark in &chart.marks {
            let x = |seconds: f64| {
                let place = LEFT + (WIDTH - LEFT - RIGHT) * (seconds / step - 1.0) / (count.max(2) - 1) as f64;
                place.clamp(LEFT, WIDTH - RIGHT)
            };
            let (from, until) = (x(mark.from), x(mark.until));
            let _ = writeln!(
                body,
                "<rect class=\"mark\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{}\"><title>{}</title></rect>",
                (until - from).max(2.0),
                HEIGHT - TOP - BOTTOM,
                escape(&mark.name)
            );
        }
        for tick in scale.ticks() {
            let y = scale.y(tick);
            let _ = writeln!(
                body,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                short(tick)
            );
        }
        let every = (count / 12).max(1);
        for second in (0..count).step_by(every) {
            let (x, y) = (at(second), HEIGHT - 8.0);
            let label = trimmed((second + 1) as f64 * step);
            let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label} s</text>");
        }
        for (index, series) in chart.series.iter().enumerate() {
            let points: Vec<String> = series
                .values
                .iter()
                .enumerate()
                .map(|(second, &value)| format!("{:.1},{:.1}", at(second), scale.y(value)))
                .collect();
            let _ = writeln!(body, "<polyline class=\"plot s{}\" points=\"{}\"/>", index % COLOURS, points.join(" "));
        }
        let _ = writeln!(
            body,
            "<line class=\"grid cursor\" visibility=\"hidden\" x1=\"0\" x2=\"0\" y1=\"{TOP}\" y2=\"{}\"/></svg>",
            HEIGHT - BOTTOM
        );
        body.push_str("<div class=\"legend\">");
        for (index, series) in chart.series.iter().enumerate() {
            let _ = write!(body, "<span><i class=\"f{}\"></i>{}</span>", index % COLOURS, escape(series.name));
        }
        body.push_str("</div><div class=\"tip\"></div></figure>\n");
    }

    /// Bars side by side, in groups.
    pub fn bars(&mut self, title: &str, groups: &[Bars<'_>]) {
        let largest = groups.iter().flat_map(|group| &group.values).map(|(_, value)| *value).fold(0.0, f64::max);
        let rows: usize = groups.iter().map(|group| group.values.len() + 1).sum();
        let (row, label, room) = (20.0, 300.0, WIDTH - 300.0 - 70.0);
        let _ = writeln!(self.body, "<h2>{}</h2>", escape(title));
        let _ = writeln!(self.body, "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">", rows as f64 * row);
        let mut y = 0.0;
        let mut names: Vec<&str> = Vec::new();
        for group in groups {
            let middle = y + row * group.values.len() as f64 / 2.0 + 4.0;
            let _ = writeln!(
                self.body,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                label - 10.0,
                escape(group.name)
            );
            for (name, value) in &group.values {
                let colour = names.iter().position(|known| known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                });
                let width = if largest > 0.0 { room * value / largest } else { 0.0 };
                let _ = writeln!(
                    self.body,
                    "<rect class=\"f{}\" x=\"{label}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" rx=\"3\"/>\
                     <text x=\"{:.1}\" y=\"{}\">{}</text>",
                    colour % COLOURS,
                    y + 2.0,
                    row - 4.0,
                    label + width + 6.0,
                    y + row - 6.0,
                    short(*value)
                );
                y += row;
            }
            y += row;
        }
        self.body.push_str("</svg><div class=\"legend\">");
        for (index, name) in names.iter().enumerate() {
            let _ = write!(self.body, "<span><i class=\"f{}\"></i>{}</span>", index % COLOURS, escape(name));
        }
        self.body.push_str("</div>\n");
    }

    /// The whole file.
    pub fn finish(mut self) -> String {
        let _ = writeln!(self.body, "<script>\n{SCRIPT}</script></body></html>");
        self.body
    }
}

/// From values to heights.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn new(chart: &Chart<'_>) -> Self {
        let values = || chart.series.iter().flat_map(|series| series.values.iter().copied());
        let largest = values().fold(0.0, f64::max);
        if chart.logarithmic {
            let smallest = values().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min).min(largest);
            let low = if smallest > 0.0 && smallest.is_finite() { smallest.log10().floor() } else { -3.0 };
            let high = if largest > 0.0 { largest.log10().ceil() } else { 0.0 };
            return Self { low, high: high.max(low + 1.0), logarithmic: true };
        }
        let step = nice_step(largest);
        Self { low: 0.0, high: ((largest / step).ceil() * step).max(step), logarithmic: false }
    }

    fn y(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high - self.low) as i32;
            return (0..=decades).map(|decade| 10f64.powi(self.low as i32 + decade)).collect();
        }
        let step = nice_step(self.high);
        (0..=(self.high / step).round() as u32).map(|tick| f64::from(tick) * step).collect()
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `largest` into about five.
fn nice_step(largest: f64) -> f64 {
    if largest <= 0.0 {
        return 1.0;
    }
    let rough = largest / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough).unwrap_or(power * 10.0)
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        value if value >= 1e3 => format!("{}k", trimmed(value / 1e3)),
        value => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_at_round_numbers_and_hold_every_value() {
        for largest in [0.0, 0.003, 1.0, 7.0, 99.0, 100.0, 123_456.0] {
            for logarithmic in [false, true] {
                let series = vec![Series { name: "x", values: vec![largest / 3.0, largest] }];
                let scale = Scale::new(&Chart {
                    title: "",
                    unit: "",
                    logarithmic,
                    step_seconds: 1.0,
                    marks: Vec::new(),
                    series,
                });
                assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(largest)), "{largest}");
                assert!((2..=12).contains(&scale.ticks().len()), "{largest}: {:?}", scale.ticks());
            }
        }
    }

    #[test]
    fn a_page_refers_to_nothing_outside_itself() {
        let mut page = Page::new("<b>", "a & b");
        let series = vec![Series { name: "p50", values: vec![1.0, 2.0] }];
        let marks = vec![Mark { from: 0.5, until: 1.5, name: "a fault <1>".to_owned() }];
        page.chart(&Chart { title: "t", unit: "ms", logarithmic: true, step_seconds: 0.5, marks, series });
        page.bars("bars", &[Bars { name: "SET", values: vec![("ours", 2.0), ("theirs", 1.0)] }]);
        let html = page.finish();
        assert!(
            html.contains("<h1>&lt;b&gt;</h1>") && html.contains("a &amp; b") && html.contains("a fault &lt;1&gt;")
        );
        for reference in ["http", "src=", "href=", "url(", "@import"] {
            assert!(!html.contains(reference), "{reference}");
        }
    }
}
