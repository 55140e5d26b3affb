//! Search results as one HTML page: a row of pictures per text, without scripts or external files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub(super) struct Cell<'a> {
    pub name: String,
    pub similarity: f64,
    /// `None` if the picture could not be read a second time.
    pub jpeg: Option<&'a [u8]>,
}

const HEAD: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
    <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
    <meta name=\"viewport\" content=\"width=device-width\">\n<title>Search by text</title>\n<style>\n\
    body{font:14px/1.4 system-ui,sans-serif;margin:2em;background:#fff;color:#222}\n\
    h2{font-size:1.1em;margin:1.5em 0 .5em}\n\
    ol{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:12px}\n\
    li{width:160px;overflow-wrap:anywhere;font-size:12px}\n\
    img,i{display:block;width:160px;height:160px;object-fit:cover;background:#eee;border-radius:4px}\n\
    b{font-variant-numeric:tabular-nums}\n\
    @media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}img,i{background:#333}}\n\
    </style>\n";

/// The page for these texts.
pub(super) fn page<'a>(texts: impl Iterator<Item = (&'a str, Vec<Cell<'a>>)>) -> String {
    let mut page = HEAD.to_owned();
    for (text, cells) in texts {
        page.push_str(&format!("<h2>{}</h2>\n<ol>\n", escape(text)));
        for cell in cells {
            let name = escape(&cell.name);
            let picture = match cell.jpeg {
                Some(jpeg) => {
                    let data = STANDARD.encode(jpeg);
                    format!("<img alt=\"{name}\" src=\"data:image/jpeg;base64,{data}\">")
                }
                None => "<i></i>".to_owned(),
            };
            page.push_str(&format!(
                "<li>{picture}<b>{:.3}</b> {name}</li>\n",
                cell.similarity
            ));
        }
        page.push_str("</ol>\n");
    }
    page.push_str("</html>\n");
    page
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_names_are_never_markup() {
        let cell = Cell {
            name: "\"><script>alert(1)</script>.jpg".to_owned(),
            similarity: 0.25,
            jpeg: Some(b"\xff\xd8"),
        };
        let page = page([("<b>&'", vec![cell])].into_iter());
        assert!(!page.contains("<script") && !page.contains("<b>&'"));
        assert!(page.contains("&lt;b&gt;&amp;&#39;") && page.contains("base64,/9g="));
    }
}
