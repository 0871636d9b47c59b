//! `sandglass explain`: explains the code of an error.

use anyhow::bail;
use serde_json::json;

use crate::exit::Exit;
use crate::explain::{self, Line, PAGES, Page};
use crate::terminal::{Output, Tone};

/// Explains an error code: what it means, why it happens and what to do
///
/// `run`, `why` and `check` print codes. Without a code, lists all of them.
///
/// Exit code: 0 explained, 2 there is no such code.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass explain\n  sandglass explain missing_import\n  \
    sandglass run tool.wasm --report json | jq -r .error.kind | xargs sandglass explain")]
pub(crate) struct Arguments {
    /// The code, such as missing_import
    #[arg(value_name = "CODE")]
    code: Option<String>,
    /// Print {code, title, text}, or an array of {code, title} without a code
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let output = Output::new();
    match (&arguments.code, arguments.json) {
        (None, false) => list(&output)?,
        (None, true) => {
            let entry = |page: &Page| json!({ "code": page.code, "title": page.title() });
            output.json_pretty(&PAGES.iter().map(entry).collect::<Vec<_>>())?;
        }
        (Some(code), as_json) => {
            let page = page(code)?;
            if as_json {
                let text = page.plain();
                let entry = json!({ "code": page.code, "title": page.title(), "text": text });
                output.json_pretty(&entry)?;
            } else {
                print(page, &output)?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn page(code: &str) -> anyhow::Result<&'static Page> {
    if let Some(page) = explain::named(code) {
        return Ok(page);
    }
    let help = sandglass_source::nearest(code, PAGES.iter().map(|page| page.code)).map_or_else(
        || "; `sandglass explain` lists all codes".to_owned(),
        |near| format!("; did you mean `{near}`?"),
    );
    bail!("there is no error code `{}`{help}", sandglass_source::shortened(code, 60))
}

fn list(output: &Output) -> anyhow::Result<()> {
    let width = PAGES.iter().map(|page| page.code.len()).max().unwrap_or_default();
    for page in PAGES {
        let code = output.paint(Tone::Strong, format!("{:width$}", page.code));
        output.line(format!("{code}  {}", page.title()))?;
    }
    Ok(())
}

fn print(page: &Page, output: &Output) -> anyhow::Result<()> {
    output.line(output.paint(Tone::Strong, format!("{}: {}", page.code, page.title())))?;
    for (kind, line) in page.lines() {
        let tone = if kind == Line::Heading { Tone::Strong } else { Tone::Plain };
        output.line(output.paint(tone, line))?;
    }
    Ok(())
}
