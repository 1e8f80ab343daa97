//! Text of other people in HTML, in Markdown, in addresses.
//!
//! Invariant: what goes through here comes out as text: no tag, no Markdown, no directive, no preprocessor's `{{#…}}`, no blank line
//! that would end an HTML block.

use std::fmt::Write as _;
use std::io;

use crate::report::comparison::harmless;

/// Returns text for an HTML element or a quoted attribute inside a chapter: one line, whatever stands in it.
pub fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    // Line ends become entities first: `harmless` would spell them out.
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            safe.push_str("&#10;");
        }
        for character in harmless(line.strip_suffix('\r').unwrap_or(line)).chars() {
            match character {
                '&' => safe.push_str("&amp;"),
                '<' => safe.push_str("&lt;"),
                '>' => safe.push_str("&gt;"),
                '"' => safe.push_str("&quot;"),
                // Braces so that no preprocessor takes them for its own.
                '\'' | '`' | '{' | '}' => entity(&mut safe, character),
                other => safe.push(other),
            }
        }
    }
    safe
}

/// Returns text for the middle of a Markdown paragraph, heading or table cell.
pub fn markdown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in harmless(&text.replace(['\r', '\n'], " ")).chars() {
        // A character reference never takes part in the structure of Markdown.
        let plain =
            character.is_alphanumeric() || matches!(character, ' ' | ',' | ';' | '%' | '/') || !character.is_ascii();
        if plain { safe.push(character) } else { entity(&mut safe, character) }
    }
    safe
}

/// Returns HTML of one line as it may stand in the middle of a Markdown paragraph, heading or table cell: what is outside its tags is
/// read as Markdown there, and so is a `|` inside them.
pub fn inside_markdown(html: &str) -> String {
    let mut safe = String::with_capacity(html.len());
    let mut is_tag = false;
    for character in html.chars() {
        match character {
            '<' => is_tag = true,
            '>' if is_tag => {
                is_tag = false;
                safe.push('>');
                continue;
            }
            '\n' => {
                safe.push(' ');
                continue;
            }
            _ => {}
        }
        let means_nothing =
            matches!(character, '&' | '#' | ';' | ',' | '%' | '/' | ' ') || !character.is_ascii_punctuation();
        if means_nothing || (is_tag && character != '|') { safe.push(character) } else { entity(&mut safe, character) }
    }
    safe
}

fn entity(text: &mut String, character: char) {
    let _ = write!(text, "&#{};", u32::from(character));
}

/// Escapes what a template prints.
pub(super) fn escape(text: &str, out: &mut dyn io::Write) -> io::Result<()> {
    out.write_all(html(text).as_bytes())
}

/// Returns a path of the site as part of an address.
pub fn address(path: &str) -> String {
    let mut safe = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/') {
            safe.push(char::from(byte));
        } else {
            let _ = write!(safe, "%{byte:02X}");
        }
    }
    safe
}

/// Returns the relative address of `to` as seen from the page `from`, both paths of the site; `to` may end in `#anchor`.
pub fn relative(from: &str, to: &str) -> String {
    let (path, anchor) =
        to.split_once('#').map_or((to, String::new()), |(path, anchor)| (path, format!("#{}", address(anchor))));
    if path == from && !anchor.is_empty() {
        return anchor;
    }
    let above: Vec<&str> = from.split('/').collect();
    let target: Vec<&str> = path.split('/').collect();
    let folders = above.len() - 1;
    let common =
        above[..folders].iter().zip(&target[..target.len() - 1]).take_while(|(one, other)| one == other).count();
    let up = "../".repeat(folders - common);
    format!("{up}{}{anchor}", address(&target[common..].join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_hostile_text_is_left_to_interpret() {
        let hostile =
            "<script>alert('x')</script>\n\n# `a|b` {{#include /etc/passwd}} ](javascript:x) \u{1b}[31m\u{202e}";
        let safe = html(hostile);
        for part in ["<", "\n", "{{", "`", "'", "\u{1b}", "\u{202e}"] {
            assert!(!safe.contains(part), "{part:?} in {safe}");
        }
        let safe = markdown(hostile);
        for part in ["<", "\n", "{", "`", "|", "]", "(", "*", "_", "#i", "\u{1b}"] {
            assert!(!safe.contains(part), "{part:?} in {safe}");
        }
        assert_eq!((html(""), markdown("")), (String::new(), String::new()));
        assert_eq!(html("a < b & é"), "a &lt; b &amp; é");
        assert_eq!(markdown("k0-4 is 5 %"), "k0&#45;4 is 5 %");
    }

    #[test]
    fn a_tag_stays_one_in_markdown_and_what_it_holds_is_text() {
        assert_eq!(inside_markdown(""), "");
        let link = r#"<a title="a|b" href="x_y">+1 [*2*] &amp; a_b</a>"#;
        let wanted = r#"<a title="a&#124;b" href="x_y">&#43;1 &#91;&#42;2&#42;&#93; &amp; a&#95;b</a>"#;
        assert_eq!(inside_markdown(link), wanted);
    }

    #[test]
    fn a_link_goes_up_as_far_as_it_must() {
        assert_eq!(relative("index.html", "runs/a b/x.html"), "runs/a%20b/x.html");
        assert_eq!(relative("findings/oea/4f/index.html", "findings/oea/4f/claims/x.html#b1"), "claims/x.html#b1");
        assert_eq!(
            relative("findings/oea/4f/claims/x.html", "runs/oea/4f/s/index.html"),
            "../../../../runs/oea/4f/s/index.html"
        );
        assert_eq!(relative("a/b.html", "a/b.html#c"), "#c");
        assert_eq!(relative("a/b.html", "c.html"), "../c.html");
    }
}
