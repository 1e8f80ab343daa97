//! Draws what plotters asks for as SVG that follows the theme of the page it stands in.
//!
//! Invariant: the output is well-formed XML without blank lines; text from elsewhere is in it as text, whatever it holds, also when
//! the SVG stands inside Markdown. Colours are roles: a class that the page's style sheet colours, and beside it a literal colour
//! for a file that stands alone. Coordinates are a sixteenth of a pixel, since plotters counts in whole ones.

use std::convert::Infallible;
use std::fmt::Write as _;

use plotters::style::RGBColor;
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontStyle,
    FontTransform,
};

/// Units of the canvas in one pixel.
pub(super) const SCALE: i32 = 16;

/// Number of colours for series before they repeat.
pub(super) const SERIES: usize = 6;

/// What a colour is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Text that names something.
    Ink,
    /// Text that explains, tick labels, axes.
    Muted,
    /// Lines behind everything.
    Grid,
    /// Values that do not matter.
    Band,
    /// One series, counted from 0.
    Series(usize),
}

impl Role {
    /// Returns the colour that stands for this role until the output is written: one that no design would use.
    pub(super) fn colour(self) -> RGBColor {
        let code = match self {
            Self::Ink => 0,
            Self::Muted => 1,
            Self::Grid => 2,
            Self::Band => 3,
            Self::Series(index) => 16 + (index % SERIES) as u8,
        };
        RGBColor(0xf1, code, 0xf2)
    }

    fn of(rgb: (u8, u8, u8)) -> Option<Self> {
        match rgb {
            (0xf1, 0, 0xf2) => Some(Self::Ink),
            (0xf1, 1, 0xf2) => Some(Self::Muted),
            (0xf1, 2, 0xf2) => Some(Self::Grid),
            (0xf1, 3, 0xf2) => Some(Self::Band),
            (0xf1, code @ 16..22, 0xf2) => Some(Self::Series(usize::from(code) - 16)),
            _ => None,
        }
    }

    fn class(self) -> String {
        match self {
            Self::Ink => "ink".to_owned(),
            Self::Muted => "muted".to_owned(),
            Self::Grid => "grid".to_owned(),
            Self::Band => "band".to_owned(),
            Self::Series(index) => format!("s{index}"),
        }
    }

    /// Returns the colour on white, for a file that stands alone. Series: Okabe and Ito, Color Universal Design, 2008.
    fn literal(self) -> &'static str {
        match self {
            Self::Ink => "#222222",
            Self::Muted => "#595959",
            Self::Grid => "#d9d9d9",
            Self::Band => "#7f7f7f",
            Self::Series(index) => ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"][index % SERIES],
        }
    }
}

/// A canvas of `width` × `height` pixels that appends elements to a text.
pub(super) struct SvgBackend<'b> {
    body: &'b mut String,
    width: u32,
    height: u32,
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl<'b> SvgBackend<'b> {
    pub(super) fn new(body: &'b mut String, width: u32, height: u32) -> Self {
        Self { body, width, height }
    }

    fn element(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

impl DrawingBackend for SvgBackend<'_> {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width * SCALE as u32, self.height * SCALE as u32)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, point: BackendCoord, colour: BackendColor) -> Drawn {
        if colour.alpha > 0.0 {
            let (x, y) = (pixels(point.0), pixels(point.1));
            self.element(&format!(r#"<rect x="{x}" y="{y}" width="0.06" height="0.06"{}/>"#, paint("fill", colour)));
        }
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        upper_left: BackendCoord,
        bottom_right: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        if style.color().alpha <= 0.0 {
            return Ok(());
        }
        let (left, right) = (upper_left.0.min(bottom_right.0), upper_left.0.max(bottom_right.0));
        let (top, bottom) = (upper_left.1.min(bottom_right.1), upper_left.1.max(bottom_right.1));
        let (x, y, width, height) = (pixels(left), pixels(top), pixels(right - left), pixels(bottom - top));
        let look = look(style, fill);
        self.element(&format!(r#"<rect x="{x}" y="{y}" width="{width}" height="{height}"{look}/>"#));
        Ok(())
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if style.color().alpha > 0.0 {
            let points = points(path);
            self.element(&format!(r#"<polyline points="{points}"{}/>"#, look(style, false)));
        }
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, center: BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        if style.color().alpha > 0.0 {
            let (x, y, radius) = (pixels(center.0), pixels(center.1), pixels(radius.cast_signed()));
            self.element(&format!(r#"<circle cx="{x}" cy="{y}" r="{radius}"{}/>"#, look(style, fill)));
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if style.color().alpha > 0.0 {
            let points = points(path);
            self.element(&format!(r#"<polygon points="{points}"{}/>"#, look(style, true)));
        }
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, position: BackendCoord) -> Drawn {
        if style.color().alpha <= 0.0 || text.trim().is_empty() {
            return Ok(());
        }
        let size = style.size() / f64::from(SCALE);
        let anchor = match style.anchor().h_pos {
            HPos::Left => "",
            HPos::Center => r#" text-anchor="middle""#,
            HPos::Right => r#" text-anchor="end""#,
        };
        // Where the base line is: Helvetica's capitals are 0.72 em high, its descenders 0.21 em deep.
        let below = match style.anchor().v_pos {
            VPos::Top => 0.78,
            VPos::Center => 0.36,
            VPos::Bottom => -0.21,
        };
        let (x, y) = (pixels(position.0), pixels(position.1));
        let baseline = number(f64::from(position.1) / f64::from(SCALE) + below * size);
        let turned = match style.transform() {
            FontTransform::None => String::new(),
            FontTransform::Rotate90 => format!(r#" transform="rotate(90 {x} {y})""#),
            FontTransform::Rotate180 => format!(r#" transform="rotate(180 {x} {y})""#),
            FontTransform::Rotate270 => format!(r#" transform="rotate(270 {x} {y})""#),
        };
        let weight = match style.style() {
            FontStyle::Normal => "",
            FontStyle::Bold => r#" font-weight="bold""#,
            FontStyle::Oblique | FontStyle::Italic => r#" font-style="italic""#,
        };
        let (size, fill) = (number(size), paint("fill", style.color()));
        let text = escaped(text);
        self.element(&format!(
            r#"<text x="{x}" y="{baseline}" font-size="{size}"{anchor}{weight}{turned}{fill}>{text}</text>"#
        ));
        Ok(())
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        Ok(((em(text) * style.size()).ceil() as u32, style.size().ceil() as u32))
    }
}

/// Puts the elements of a canvas into a whole picture that can be read aloud.
pub(super) fn picture(id: &str, title: &str, description: &str, (width, height): (u32, u32), body: &str) -> String {
    let id: String =
        id.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '-' }).collect();
    let (title, description) = (escaped(title), escaped(description));
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" class="lb-chart" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-labelledby="{id}-title {id}-desc" font-family="Helvetica, Arial, sans-serif">
<title id="{id}-title">{title}</title>
<desc id="{id}-desc">{description}</desc>
{body}</svg>
"#
    )
}

/// Returns the width of a text in em, by the metrics of Helvetica (Adobe Core 14 AFM), which Arial and Liberation Sans share.
pub(super) fn em(text: &str) -> f64 {
    text.chars().map(|character| f64::from(thousandths(character)) / 1000.0).sum()
}

/// Returns the width in pixels to keep free for a text: where none of those fonts is installed, browsers take wider ones (`DejaVu
/// Sans` by an eighth).
pub(super) fn room(text: &str, size: f64) -> f64 {
    em(text) * size * 1.15
}

#[rustfmt::skip]
const ASCII_WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, 556, 556, 556, 556, 556, 556, 556, 556,
    556, 556, 278, 278, 584, 584, 584, 556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778,
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556,
    556, 222, 222, 500, 222, 833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584,
];

fn thousandths(character: char) -> u16 {
    match character {
        ' '..='~' => ASCII_WIDTHS[character as usize - 0x20],
        '\u{a0}' => 278,
        '−' | '×' | '±' | '÷' | '≤' | '≥' => 584,
        '…' | '—' | '\u{2e80}'.. => 1000,
        _ => 611,
    }
}

/// Shortens a text to `width` pixels at a font size; what is cut off is marked by `…`.
pub(super) fn fitted(text: &str, width: f64, size: f64) -> String {
    if room(text, size) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = room("…", size);
    for character in text.chars() {
        used += room(character.encode_utf8(&mut [0; 4]), size);
        if used > width {
            break;
        }
        kept.push(character);
    }
    format!("{}…", kept.trim_end())
}

/// Breaks a text into lines of at most `width` pixels, between words where there are any that short.
pub(super) fn wrapped(text: &str, width: f64, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let word = fitted(word, width, size);
        match lines.last_mut() {
            Some(line) if room(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Returns text that is text in XML, in HTML and in Markdown: what any of them could take for markup is a character reference, and
/// what none of them may hold, or what would reorder the line, is replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            ' ' | '.' | ',' | ':' | ';' | '%' | '+' | '=' | '/' | '(' | ')' | '-' => out.push(character),
            '\t' | '\n' | '\r' => out.push(' '),
            other if other.is_ascii_punctuation() => {
                let _ = write!(out, "&#{};", other as u32);
            }
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            other if other.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

fn pixels(units: i32) -> String {
    number(f64::from(units) / f64::from(SCALE))
}

/// Writes a number with at most two decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn points(path: impl IntoIterator<Item = BackendCoord>) -> String {
    let points: Vec<String> = path.into_iter().map(|(x, y)| format!("{},{}", pixels(x), pixels(y))).collect();
    points.join(" ")
}

fn look<S: BackendStyle>(style: &S, fill: bool) -> String {
    if fill {
        return paint("fill", style.color());
    }
    let width = number(f64::from(style.stroke_width()) / f64::from(SCALE));
    format!(r#"{} stroke-width="{width}" fill="none""#, paint("stroke", style.color()))
}

fn paint(property: &str, colour: BackendColor) -> String {
    let opacity = match colour.alpha {
        alpha if alpha >= 1.0 => String::new(),
        alpha => format!(r#" {property}-opacity="{}""#, number(alpha)),
    };
    if let Some(role) = Role::of(colour.rgb) {
        return format!(r#" class="lb-{property}-{}" {property}="{}"{opacity}"#, role.class(), role.literal());
    }
    let (red, green, blue) = colour.rgb;
    format!(r##" {property}="#{red:02x}{green:02x}{blue:02x}"{opacity}"##)
}
