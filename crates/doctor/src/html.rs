//! The report as one page for browsers: it loads nothing, so that it can be mailed and kept.

use std::fmt::Write as _;

use crate::finding::{Finding, HERE, Verdict, ranked};
use crate::report::Report;

/// Everything that the page looks like. Colours follow the reader's choice of light or dark.
const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bad:#c0341d;--good:#2c7a3f;--dim:#777}\
body{font:15px/1.45 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.3rem}h2{font-size:1.05rem;margin-top:2rem}\
.verdict{border-left:.4rem solid var(--good);padding:.6rem 1rem;background:#8881}\
.guilty .verdict{border-color:var(--bad)}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.35rem .6rem;\
border-bottom:1px solid var(--line)}th{font-weight:600}td{overflow-wrap:anywhere}\
.Guilty{color:var(--bad);font-weight:600}.Fine{color:var(--good)}.Unknown{color:var(--dim)}\
footer{margin-top:2rem;color:var(--dim)}\
@media(max-width:45rem){table,tbody,tr,td{display:block}thead{display:none}tr{border-bottom:1px solid var(--line);\
padding:.5rem 0}td{border:0;padding:.1rem 0}}";

/// The whole page. `made` says when the examination was made.
pub fn page(report: &Report, made: &str) -> String {
    let class = if report.is_guilty() { "guilty" } else { "healthy" };
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <title>holdfast doctor, {made}</title><style>{STYLE}</style></head>\n<body class=\"{class}\">\
         <h1>holdfast doctor</h1>\n<p class=\"verdict\">{}</p>\n",
        escaped(&report.verdict()),
        made = escaped(made)
    );
    let guilty = ranked(&report.findings);
    if !guilty.is_empty() {
        page.push_str("<h2>What to do</h2>\n<ol>\n");
        for finding in &guilty {
            let (title, advice) = (escaped(finding.title()), escaped(&finding.advice));
            let place = escaped(place_of(finding));
            let _ = writeln!(page, "<li><b>{title}</b> ({place}): {advice}</li>");
        }
        page.push_str("</ol>\n");
    }
    for (verdict, heading) in
        [(Verdict::Guilty, "Guilty"), (Verdict::Fine, "Fine"), (Verdict::Unknown, "Could not be examined")]
    {
        let findings = report.findings.iter().filter(|finding| finding.verdict == verdict);
        let rows: Vec<String> = findings.map(row).collect();
        if !rows.is_empty() {
            let _ = writeln!(
                page,
                "<h2>{heading}</h2>\n<table><thead><tr><th>check</th><th>where</th><th>verdict</th><th>value</th>\
                 <th>reference</th><th>detail</th></tr></thead><tbody>\n{}</tbody></table>",
                rows.concat()
            );
        }
    }
    page.push_str("<footer>");
    for (place, product) in &report.servers {
        let _ = write!(page, "{} is {}. ", escaped(place), escaped(product));
    }
    let _ = writeln!(
        page,
        "Made {} in {:.1} s, with {:.1} % of one processor and {} ms of loops.</footer></body></html>",
        escaped(made),
        report.seconds,
        report.processor_share * 100.0,
        report.looped.as_millis()
    );
    page
}

fn place_of(finding: &Finding) -> &str {
    if finding.place == HERE { "this host" } else { &finding.place }
}

fn row(finding: &Finding) -> String {
    let cells = [
        format!("{}<br><small>{}</small>", escaped(finding.title()), escaped(finding.check)),
        escaped(place_of(finding)),
        format!("<span class=\"{0:?}\">{1}</span>", finding.verdict, finding.verdict.name()),
        escaped(&finding.value),
        escaped(&finding.reference),
        escaped(&finding.detail),
    ];
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr>{cells}</tr>\n")
}

/// Names of keys and commands come from servers, and anybody may have chosen them.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for at in text.chars() {
        match at {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            at if at.is_control() => out.push('\u{FFFD}'),
            at => out.push(at),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report {
            findings,
            servers: vec![("a:1".into(), "Redis 7".into())],
            seconds: 20.0,
            processor_share: 0.005,
            looped: Duration::from_millis(100),
        }
    }

    #[test]
    fn the_page_says_the_verdict_and_loads_nothing() {
        let sync = Finding::fine("disk.sync", "p50 80 ms", "10 ms").guilty_if(true, 0.8, "buy a disk");
        let page = page(&report(vec![sync, Finding::unknown("cpu.quota", "no file")]), "today");
        assert!(page.contains("<p class=\"verdict\">guilty: writes to disk are slow"), "{page}");
        assert!(page.contains("buy a disk") && page.contains("no file") && page.contains("a:1 is Redis 7"), "{page}");
        for outside in ["http:", "https:", "src=", "href=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        let healthy = super::page(&report(vec![Finding::fine("disk.room", "half", "5 %")]), "today");
        assert!(healthy.contains("class=\"healthy\"") && !healthy.contains("What to do"), "{healthy}");
    }

    #[test]
    fn what_servers_say_is_text_and_never_markup() {
        let evil = "<script>alert('x')</script>&\"\u{7}";
        let finding = Finding::fine("disk.sync", evil, evil).detail(evil).guilty_if(true, 0.1, evil).at(evil);
        let mut report = report(vec![finding]);
        report.servers = vec![(evil.into(), evil.into())];
        let page = page(&report, evil);
        assert!(!page.contains("<script") && !page.contains("alert('x')") && !page.contains('\u{7}'), "{page}");
        assert!(page.contains("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"), "{page}");
    }
}
