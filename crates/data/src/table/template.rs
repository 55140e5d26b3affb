//! Caption templates with columns: `a photo of a {year} {make}`. A doubled brace is a literal brace; an empty cell leaves no
//! gap.

use crate::error::{DataError, suggestion};
use crate::table::{Row, Table};
use crate::words::listed;

/// A caption template whose columns are known to exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Column(usize),
}

impl Template {
    /// Parses a config's caption: a template if it has braces, otherwise a column.
    pub fn new(caption: &str, table: &Table) -> Result<Template, DataError> {
        if caption.contains(['{', '}']) {
            return Template::parse(caption, table);
        }
        match table.position(caption)? {
            Some(column) => Ok(Template::of_column(table, column)),
            None => {
                let nearest = table.nearest(caption);
                let example = nearest.as_ref().unwrap_or(&table.columns()[0]).clone();
                let hint = suggestion(nearest, "name one of the columns found");
                Err(DataError::invalid(
                    table.path().display(),
                    format_args!("caption `{caption}` to be a column"),
                    listed(table.columns()),
                    format_args!(
                        "{hint}; a template needs braces: `caption: \"a photo of a {{{example}}}\"`"
                    ),
                ))
            }
        }
    }

    /// Template of a single column.
    pub fn of_column(table: &Table, column: usize) -> Template {
        Template {
            text: format!("{{{}}}", table.columns()[column]),
            parts: vec![TemplatePart::Column(column)],
        }
    }

    fn parse(template: &str, table: &Table) -> Result<Template, DataError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = template;
        while let Some(brace) = rest.find(['{', '}']) {
            let at = template.len() - rest.len() + brace;
            literal.push_str(&rest[..brace]);
            let from_brace = &rest[brace..];
            if let Some(after) = ["{{", "}}"].iter().find_map(|b| from_brace.strip_prefix(b)) {
                literal.push_str(&from_brace[..1]);
                rest = after;
                continue;
            }
            let (name, after) = placeholder(template, at, from_brace)?;
            parts.push(TemplatePart::Text(std::mem::take(&mut literal)));
            parts.push(TemplatePart::Column(known_column(template, name, table)?));
            rest = after;
        }
        literal.push_str(rest);
        parts.push(TemplatePart::Text(literal));
        parts.retain(|part| !matches!(part, TemplatePart::Text(text) if text.is_empty()));
        Ok(Template {
            text: template.to_owned(),
            parts,
        })
    }

    /// Text of the template; a single column is `{column}`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Columns in the template.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Column(column) => Some(*column),
            TemplatePart::Text(_) => None,
        })
    }

    /// Renders a row's caption into `out`, with single spaces.
    pub fn render_into(&self, row: Row<'_>, out: &mut String) {
        out.clear();
        for part in &self.parts {
            let text = match part {
                TemplatePart::Text(text) => text,
                TemplatePart::Column(column) => row.cell(*column),
            };
            for character in text.chars() {
                if !character.is_whitespace() {
                    out.push(character);
                } else if !out.is_empty() && !out.ends_with(' ') {
                    out.push(' ');
                }
            }
        }
        out.truncate(out.trim_end().len());
    }
}

/// Splits `from_brace`, which starts with a brace, into the name inside the braces and the text behind them.
fn placeholder<'a>(
    template: &str,
    at: usize,
    from_brace: &'a str,
) -> Result<(&'a str, &'a str), DataError> {
    let braces = |expected: &str, found: &str, at: usize| {
        DataError::invalid(
            format_args!("caption template `{template}`"),
            expected,
            format_args!(
                "{found} at character {}",
                template[..at].chars().count() + 1
            ),
            "columns go between braces, `a photo of a {make}`; a brace meant as text is doubled",
        )
    };
    let Some(inside) = from_brace.strip_prefix('{') else {
        return Err(braces("an opening brace before it", "`}`", at));
    };
    match inside.find(['{', '}']) {
        Some(end) if inside[end..].starts_with('}') => match inside[..end].trim() {
            "" => Err(braces("a column between braces", "nothing", at + 1)),
            name => Ok((name, &inside[end + 1..])),
        },
        Some(end) => Err(braces("a closing brace", "`{`", at + 1 + end)),
        None => Err(braces("a closing brace", "none after `{`", at)),
    }
}

fn known_column(template: &str, name: &str, table: &Table) -> Result<usize, DataError> {
    match table.position(name)? {
        Some(column) => Ok(column),
        None => {
            let hint = suggestion(table.nearest(name), "use one of the columns found");
            Err(DataError::invalid(
                format_args!("{}: caption template `{template}`", table.path().display()),
                format_args!("{{{name}}} to be a column"),
                listed(table.columns()),
                format_args!("{hint}; braces that are meant as text are written {{{{ and }}}}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::table::tests::Written;

    fn cars() -> Written {
        Written::new(
            b"image,year,make,model\n1.jpg,2014,Ford,Focus\n2.jpg,,Tesla,\" Model\n S \"\n",
        )
    }

    fn rendered(template: &Template, table: &Table, row: usize) -> String {
        let mut rows = table.rows().unwrap();
        for _ in 0..row {
            rows.read().unwrap();
        }
        let mut out = "left over".to_owned();
        template.render_into(rows.read().unwrap().unwrap(), &mut out);
        out
    }

    fn caption(template: &str, row: usize) -> String {
        let cars = cars();
        let table = cars.table();
        rendered(&Template::new(template, &table).unwrap(), &table, row)
    }

    fn error(template: &str) -> String {
        let cars = cars();
        let error = Template::new(template, &cars.table()).unwrap_err();
        error.to_string()
    }

    #[test]
    fn columns_and_text() {
        let template = "a photo of a {year} { make } {model}";
        assert_eq!(caption(template, 0), "a photo of a 2014 Ford Focus");
        assert_eq!(caption(template, 1), "a photo of a Tesla Model S");
        assert_eq!(caption("make", 0), "Ford");
        assert_eq!(caption("{year}{make}", 0), "2014Ford");
        assert_eq!(caption("  {{{make}}}  ", 0), "{Ford}");
        assert_eq!(caption("{year}", 1), "");
        let template = Template::new("make", &cars().table());
        assert_eq!(template.unwrap().text(), "{make}");
    }

    #[test]
    fn mistakes() {
        assert!(error("a {maker}").contains("did you mean `make`?"));
        assert!(error("a {maker}").contains("image, year, make, model"));
        assert!(error("a {make").contains("found none after `{` at character 3"));
        assert!(error("a make}").contains("found `}` at character 7"));
        assert!(error("ä {year {make}").contains("found `{` at character 9"));
        assert!(error("a {}").contains("expected a column between braces"));
        let no_column = error("modell");
        assert!(no_column.contains("did you mean `model`?"), "{no_column}");
        assert!(
            no_column.contains("\"a photo of a {model}\""),
            "{no_column}"
        );
    }

    proptest! {
        #[test]
        fn never_panics(template in "[{}aäm ake]{0,20}") {
            let cars = cars();
            let table = cars.table();
            if let Ok(template) = Template::new(&template, &table) {
                let out = rendered(&template, &table, 1);
                prop_assert!(!out.contains("  ") && out.trim() == out);
            }
        }
    }
}
