//! Secrets leave the raw files before anything is sealed.
//!
//! Invariant: a file without a secret comes back byte for byte; a value that was recognised anywhere in a session stands
//! nowhere in its sealed files; the listing holds names and salted digests, never a value. The scan is textual, so that one
//! function covers JSON, rows with a bare `Infinity`, logs, `environ` and `cmdline`. Source: servers print `api_key` into
//! `server_info`, and so into every row of a published client.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::fact::FactValue;

/// What stands in place of a secret.
pub const REDACTED: &str = "[redacted]";

/// Known values shorter than this are removed where they were recognised, and not searched for elsewhere.
const SHORTEST_SEARCHED: usize = 8;

/// No credential is longer than this; a longer find is broken text and is removed in place only.
const LONGEST_SEARCHED: usize = 4096;

/// No name of a secret is longer, bytes.
const LONGEST_NAME: usize = 96;

/// Variables that are stored in clear: they configure engines, kernels, collectives and allocators, and are no credentials.
const CLEAR_PREFIXES: [&str; 33] = [
    "SGLANG_",
    "SGL_",
    "FLASHINFER_",
    "NCCL_",
    "CUDA_",
    "CUDNN_",
    "CUBLAS_",
    "NVIDIA_",
    "NVSHMEM_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "TRTLLM_",
    "TLLM_",
    "TILELANG_",
    "DG_",
    "DEEPEP_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "LD_",
    "VLLM_",
    "HF_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
    "UCX_",
    "GLOO_",
    "MALLOC_",
    "PYTHONHASHSEED",
    "RAYON_",
    "POCKETMOE_",
];

/// One secret that was removed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redaction {
    /// Under which name it stood.
    pub name: String,
    /// SHA-256 of salt ‖ NUL ‖ value: equal values of one edition have equal digests.
    pub digest: Digest,
}

impl Redaction {
    fn of(name: &str, value: &[u8], salt: &str) -> Self {
        Self { name: name.to_owned(), digest: salted(value, salt) }
    }
}

/// Returns SHA-256 of salt ‖ NUL ‖ value.
pub fn salted(value: &[u8], salt: &str) -> Digest {
    Digest::of([salt.as_bytes(), b"\0", value].concat())
}

/// Returns `bytes` without its secrets, and what was removed (each once, in order of name).
pub fn redact(bytes: &[u8], salt: &str) -> (Vec<u8>, Vec<Redaction>) {
    let mut redactor = Redactor::new(salt);
    redactor.learn(bytes);
    redactor.redact(bytes)
}

/// The secrets of one session: learned from all its files first, then removed from each.
#[derive(Debug, Clone)]
pub struct Redactor {
    salt: String,
    known: BTreeMap<Vec<u8>, String>,
    /// The first two bytes of the known values: most places of a file are told from them alone.
    starts: BTreeSet<[u8; 2]>,
}

impl Redactor {
    /// Starts without a known secret.
    pub fn new(salt: &str) -> Self {
        Self { salt: salt.to_owned(), known: BTreeMap::new(), starts: BTreeSet::new() }
    }

    /// Remembers the secrets that stand in `bytes`.
    pub fn learn(&mut self, bytes: &[u8]) {
        for found in scan(bytes) {
            self.learn_value(&found.name, &bytes[found.value]);
        }
    }

    /// Remembers a secret that is known from elsewhere, such as a variable of the spec.
    pub fn learn_value(&mut self, name: &str, value: &[u8]) {
        let quoted = [b"\"", value, b"\""].concat();
        let plain = serde_json::from_slice::<String>(&quoted).ok().map(String::into_bytes);
        for value in [Some(value.to_vec()), plain].into_iter().flatten() {
            if (SHORTEST_SEARCHED..=LONGEST_SEARCHED).contains(&value.len()) {
                self.starts.insert([value[0], value[1]]);
                self.known.entry(value).or_insert_with(|| name.to_owned());
            }
        }
    }

    /// Returns `bytes` without secrets, recognised here or learned, and what was removed (each once, in order of name).
    pub fn redact(&self, bytes: &[u8]) -> (Vec<u8>, Vec<Redaction>) {
        let mut removed = BTreeSet::new();
        let mut output = Vec::with_capacity(bytes.len());
        let mut from = 0;
        for found in scan(bytes) {
            removed.insert(Redaction::of(&found.name, &bytes[found.value.clone()], &self.salt));
            output.extend_from_slice(&bytes[from..found.value.start]);
            output.extend_from_slice(if found.needs_quotes { b"\"[redacted]\"" } else { REDACTED.as_bytes() });
            from = found.value.end;
        }
        output.extend_from_slice(&bytes[from..]);
        let output = self.replace_known(output, &mut removed);
        (output, removed.into_iter().collect())
    }

    /// Rewrites an `environ` dump: variables outside the allow-list and outside `clear` keep their name and the salted
    /// digest of their value only.
    pub fn redact_environ(&self, environ: &[u8], clear: &[String]) -> (Vec<u8>, Vec<Redaction>) {
        let mut removed = BTreeSet::new();
        let mut output = Vec::with_capacity(environ.len());
        for (index, entry) in environ.split(|byte| *byte == 0).enumerate() {
            if index > 0 {
                output.push(0);
            }
            let Some((name, value)) = variable(entry) else {
                output.extend_from_slice(entry);
                continue;
            };
            output.extend_from_slice(name.as_bytes());
            output.push(b'=');
            if in_clear(&name, clear) || value.is_empty() || digest_in_place(value).is_some() {
                output.extend_from_slice(value);
            } else {
                let redaction = Redaction::of(&name, value, &self.salt);
                output.extend_from_slice(format!("[sha256 {}]", redaction.digest).as_bytes());
                if is_secret_name(&name) {
                    removed.insert(redaction);
                }
            }
        }
        let output = self.replace_known(output, &mut removed);
        (output, removed.into_iter().collect())
    }

    fn replace_known(&self, bytes: Vec<u8>, removed: &mut BTreeSet<Redaction>) -> Vec<u8> {
        if self.known.is_empty() {
            return bytes;
        }
        let mut output = Vec::with_capacity(bytes.len());
        let (mut from, mut at) = (0, 0);
        while at + SHORTEST_SEARCHED <= bytes.len() {
            let Some((value, name)) = self.known_at(&bytes[at..]) else {
                at += 1;
                continue;
            };
            removed.insert(Redaction::of(name, value, &self.salt));
            output.extend_from_slice(&bytes[from..at]);
            output.extend_from_slice(REDACTED.as_bytes());
            at += value.len();
            from = at;
        }
        output.extend_from_slice(&bytes[from..]);
        output
    }

    /// Returns the longest known value that `bytes` starts with.
    fn known_at(&self, bytes: &[u8]) -> Option<(&Vec<u8>, &String)> {
        if !self.starts.contains(&[bytes[0], bytes[1]]) {
            return None;
        }
        let prefix = bytes[..SHORTEST_SEARCHED].to_vec();
        let same_start = self.known.range(prefix.clone()..).take_while(|(value, _)| value.starts_with(&prefix));
        same_start.filter(|(value, _)| bytes.starts_with(value)).last()
    }
}

/// The variables of an `environ` dump as facts: allow-listed ones and those named in `clear` with their value, of every
/// other the text `sha256:HEX` of the salted value. Works on a dump as read and on one that was sealed.
pub fn environment_facts(environ: &[u8], salt: &str, clear: &[String]) -> BTreeMap<String, FactValue> {
    let mut facts = BTreeMap::new();
    for (name, value) in environ.split(|byte| *byte == 0).filter_map(variable) {
        let value = if let Some(digest) = digest_in_place(value) {
            format!("sha256:{digest}")
        } else if in_clear(&name, clear) || value.is_empty() || value == REDACTED.as_bytes() {
            String::from_utf8_lossy(value).into_owned()
        } else {
            format!("sha256:{}", salted(value, salt))
        };
        // The first of two equal names is the one that `getenv` returns.
        facts.entry(name).or_insert(FactValue::Text(value));
    }
    facts
}

fn variable(entry: &[u8]) -> Option<(String, &[u8])> {
    let equals = entry.iter().position(|byte| *byte == b'=')?;
    let name = std::str::from_utf8(&entry[..equals]).ok()?;
    (!name.is_empty()).then(|| (name.to_owned(), &entry[equals + 1..]))
}

fn in_clear(name: &str, clear: &[String]) -> bool {
    !is_secret_name(name)
        && (CLEAR_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || clear.iter().any(|wanted| wanted == name))
}

fn digest_in_place(value: &[u8]) -> Option<&str> {
    let digest = value.strip_prefix(b"[sha256 ")?.strip_suffix(b"]")?;
    let digest = std::str::from_utf8(digest).ok()?;
    Digest::parse(digest).map(|_| digest)
}

/// One recognised secret; `value` is where it stands.
#[derive(Debug, PartialEq)]
struct Found {
    name: String,
    value: Range<usize>,
    needs_quotes: bool,
}

/// Returns the secrets of `bytes` in order, without overlap, in time proportional to its length.
fn scan(bytes: &[u8]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut at = 0;
    let has_nul = bytes.contains(&0);
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let end = at + bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
        let word = word_start(bytes, at)..end;
        at = end;
        if let Some(found_here) = secret_at(bytes, &word, has_nul) {
            at = found_here.last().map_or(end, |found| found.value.end.max(end));
            found.extend(found_here.into_iter().filter(|found| !found.value.is_empty()));
        }
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

/// A word after `\n`, `\t` or `\r` inside a JSON string starts behind the letter.
fn word_start(bytes: &[u8], at: usize) -> usize {
    let escaped = at > 0 && bytes[at - 1] == b'\\' && matches!(bytes[at], b'n' | b't' | b'r');
    at + usize::from(escaped)
}

fn secret_at(bytes: &[u8], word: &Range<usize>, has_nul: bool) -> Option<Vec<Found>> {
    let text = std::str::from_utf8(&bytes[word.clone()]).ok()?;
    if let Some(password) = password_in_url(bytes, word) {
        return Some(vec![Found { name: "url".to_owned(), value: password, needs_quotes: false }]);
    }
    if looks_like_credential(text) {
        let tail = bytes[word.end..].iter().take_while(|byte| is_word(**byte) || **byte == b'.').count();
        // A signed web token goes on behind the dot; any other credential is the word itself.
        let end = if text.starts_with("eyJ") { word.end + tail } else { word.end };
        return Some(vec![Found { name: "credential".to_owned(), value: word.start..end, needs_quotes: false }]);
    }
    if text.len() > LONGEST_NAME {
        return None;
    }
    let name = text.trim_start_matches('-');
    if name.eq_ignore_ascii_case("bearer") {
        return bearer(bytes, word.end).map(|value| vec![Found { name: name.to_owned(), value, needs_quotes: false }]);
    }
    if !is_secret_name(name) {
        return None;
    }
    let values = values_after(bytes, word, has_nul, name)?;
    let secret = |value: &Range<usize>| is_secret_value(name, &bytes[value.clone()]);
    let kept = values.into_iter().filter(|(value, _)| value.is_empty() || secret(value));
    let found: Vec<Found> =
        kept.map(|(value, needs_quotes)| Found { name: name.to_owned(), value, needs_quotes }).collect();
    (!found.is_empty()).then_some(found)
}

/// `scheme://user:PASSWORD@host`; the word is the user's name.
fn password_in_url(bytes: &[u8], word: &Range<usize>) -> Option<Range<usize>> {
    if !bytes[..word.start].ends_with(b"://") || bytes.get(word.end) != Some(&b':') {
        return None;
    }
    let start = word.end + 1;
    let stops = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'@' | b'/' | b'"' | b'\'' | 0);
    let length = bytes[start..].iter().take(256).position(stops)?;
    let value = start..start + length;
    (bytes[value.end] == b'@' && !value.is_empty() && &bytes[value.clone()] != REDACTED.as_bytes()).then_some(value)
}

/// Credentials that are recognised by their form: a published prefix, enough characters, a digit.
fn looks_like_credential(text: &str) -> bool {
    const FORMS: [(&str, usize); 12] = [
        ("sk-", 20),
        ("hf_", 24),
        ("ghp_", 24),
        ("gho_", 24),
        ("ghs_", 24),
        ("github_pat_", 30),
        ("glpat-", 20),
        ("xoxb-", 20),
        ("xoxp-", 20),
        ("nvapi-", 24),
        ("AKIA", 20),
        ("eyJhbGciOi", 20),
    ];
    FORMS.iter().any(|(prefix, shortest)| text.len() >= *shortest && text.starts_with(prefix))
        && text.bytes().any(|byte| byte.is_ascii_digit())
}

fn bearer(bytes: &[u8], from: usize) -> Option<Range<usize>> {
    let start = from + blanks(&bytes[from..]);
    let value = start..start + bytes[start..].iter().take_while(|byte| is_credential_byte(**byte)).count();
    let long_enough = value.len() >= 12 && bytes[value.clone()].iter().any(u8::is_ascii_digit);
    (start > from && long_enough).then_some(value)
}

fn is_credential_byte(byte: u8) -> bool {
    is_word(byte) || matches!(byte, b'.' | b'~' | b'+' | b'/' | b'=')
}

fn blanks(bytes: &[u8]) -> usize {
    bytes.iter().take(64).take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count()
}

/// Returns whether `name` (of a JSON member, a flag, a variable, a header) names a secret. `max_total_num_tokens`,
/// `eos_token` and `tokenizer_path` do not.
pub fn is_secret_name(name: &str) -> bool {
    let parts = parts_of(name);
    let has = |wanted: &str| parts.iter().any(|part| part == wanted);
    let pair = |one: &str, two: &str| parts.windows(2).any(|pair| pair[0] == one && pair[1] == two);
    // A path to a secret is no secret, and neither is its length or its name.
    if parts.last().is_some_and(|last| {
        matches!(last.as_str(), "file" | "path" | "dir" | "env" | "type" | "name" | "sha256" | "length" | "required")
    }) {
        return false;
    }
    let word = ["password", "passwd", "passphrase", "authorization", "secret", "secrets", "credential", "credentials"]
        .into_iter()
        .any(has);
    let key = ["apikey", "apikeys"].into_iter().any(has)
        || ["api", "access", "secret", "private", "admin"].into_iter().any(|one| pair(one, "key") || pair(one, "keys"));
    word || key || has("cookie") || is_token_name(name, &parts)
}

fn is_token_name(name: &str, parts: &[String]) -> bool {
    const OWNERS: [&str; 29] = [
        "hf",
        "hub",
        "huggingface",
        "access",
        "auth",
        "api",
        "bearer",
        "refresh",
        "secret",
        "session",
        "admin",
        "user",
        "github",
        "gh",
        "git",
        "gitlab",
        "slack",
        "bot",
        "wandb",
        "ngc",
        "jwt",
        "csrf",
        "modelscope",
        "deploy",
        "service",
        "identity",
        "security",
        "login",
        "registry",
    ];
    match parts {
        [only] => only == "token",
        [.., owner, last] if last == "token" || last == "tokens" => {
            let shouted = last == "token" && name.bytes().all(|byte| !byte.is_ascii_lowercase());
            OWNERS.contains(&owner.as_str()) || shouted
        }
        _ => false,
    }
}

/// `apiKey`, `API-KEY` and `api_key` are `api`, `key`.
fn parts_of(name: &str) -> Vec<String> {
    let mut text = String::with_capacity(name.len() + 4);
    let mut before = '_';
    for character in name.chars() {
        if character.is_ascii_uppercase() && before.is_ascii_lowercase() {
            text.push('_');
        }
        text.push(if character == '-' { '_' } else { character.to_ascii_lowercase() });
        before = character;
    }
    text.split('_').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

fn is_secret_value(name: &str, value: &[u8]) -> bool {
    let empty = matches!(value, b"" | b"None" | b"null" | b"none" | b"unset" | b"True" | b"False" | b"true" | b"false");
    let replaced = value.starts_with(REDACTED.as_bytes()) || value.starts_with(b"[sha256 ") || value == b"<redacted>";
    if empty || replaced || value.iter().all(|byte| *byte == b'*') {
        return false;
    }
    // `token` alone is also the engine's word for a piece of text, and `#token: 523` a count of them.
    let word_only = name.eq_ignore_ascii_case("token");
    let number = value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.');
    !word_only || (value.len() >= 16 && !number && !value.iter().any(u8::is_ascii_whitespace))
}

/// Returns where the values stand that belong to the name at `word`, and whether a replacement needs quotes.
fn values_after(bytes: &[u8], word: &Range<usize>, has_nul: bool, name: &str) -> Option<Vec<(Range<usize>, bool)>> {
    let starts_segment = word.start == 0 || bytes[word.start - 1] == 0;
    if has_nul && starts_segment && bytes.get(word.end) == Some(&b'=') {
        let start = word.end + 1;
        return Some(vec![(start..until_nul(bytes, start), false)]);
    }
    let quote = quote_at(bytes, word.end);
    let after_name = quote.as_ref().map_or(word.end, |quote| quote.end);
    let mut at = after_name + blanks(&bytes[after_name..]);
    let is_flag = bytes[word.clone()].starts_with(b"--");
    match bytes.get(at)? {
        b'=' | b':' => {
            let colon = bytes[at] == b':';
            at += 1;
            let gap = blanks(&bytes[at..]);
            // `the secret: of a long life` is prose; `"secret": …`, `secret=…` and `api_key: …` are not.
            let prose = colon && quote.is_none() && !name.contains(['_', '-']) && !is_header(name);
            if prose {
                return None;
            }
            at += gap;
        }
        b',' if is_flag && quote.is_some() => {
            at += 1;
            at += blanks(&bytes[at..]);
            quote_at(bytes, at)?;
        }
        0 if is_flag => return Some(vec![(at + 1..until_nul(bytes, at + 1), false)]),
        _ if is_flag && at > word.end => {}
        _ => return None,
    }
    Some(value_at(bytes, at, quote.is_some(), is_header(name)))
}

fn until_nul(bytes: &[u8], start: usize) -> usize {
    bytes[start..].iter().position(|byte| *byte == 0).map_or(bytes.len(), |length| start + length)
}

fn is_header(name: &str) -> bool {
    ["authorization", "proxy-authorization", "cookie", "set-cookie"]
        .iter()
        .any(|header| name.eq_ignore_ascii_case(header))
}

/// A quote with the backslashes before it (`"`, `'`, `\"`, `\\\"`).
fn quote_at(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let slashes = bytes[at.min(bytes.len())..].iter().take(16).take_while(|byte| **byte == b'\\').count();
    matches!(bytes.get(at + slashes)?, b'"' | b'\'').then_some(at..at + slashes + 1)
}

fn value_at(bytes: &[u8], at: usize, member: bool, header: bool) -> Vec<(Range<usize>, bool)> {
    if let Some(quote) = quote_at(bytes, at) {
        let start = quote.end;
        let end = closing(bytes, start, &bytes[quote]);
        return vec![(after_scheme(bytes, start..end), false)];
    }
    match bytes.get(at) {
        Some(b'[' | b'{') if member => strings_inside(bytes, at),
        None => Vec::new(),
        Some(b'[') if bytes[at..].starts_with(REDACTED.as_bytes()) => vec![(at..at + REDACTED.len(), false)],
        Some(_) => {
            let stops = |byte: &u8| {
                byte.is_ascii_whitespace() && !(header && matches!(byte, b' ' | b'\t'))
                    || matches!(byte, b',' | b')' | b'}' | b';' | b'&' | b'"' | b'\'' | 0)
                    || *byte == b']' && !header
            };
            let length = bytes[at..].iter().position(stops).unwrap_or(bytes.len() - at);
            vec![(after_scheme(bytes, at..at + length), member)]
        }
    }
}

/// Keeps the word `Bearer` or `Basic`, so that the way of signing in can still be read.
fn after_scheme(bytes: &[u8], value: Range<usize>) -> Range<usize> {
    let text = &bytes[value.clone()];
    for scheme in [&b"Bearer "[..], b"bearer ", b"Basic ", b"basic ", b"Token "] {
        if text.starts_with(scheme) {
            return value.start + scheme.len()..value.end;
        }
    }
    value
}

/// Returns where the text ends that a quote opened: before a quote of the same depth (or of an outer one), or at the end
/// of the line.
fn closing(bytes: &[u8], start: usize, quote: &[u8]) -> usize {
    let (mark, depth) = (quote[quote.len() - 1], quote.len() - 1);
    let mut slashes = 0;
    for (offset, byte) in bytes[start..].iter().enumerate() {
        match *byte {
            b'\\' => slashes += 1,
            b'\n' => return start + offset,
            found if found == mark && depth == 0 && slashes % 2 == 0 => return start + offset,
            found if found == mark && depth > 0 && slashes <= depth => return start + offset - slashes,
            _ => slashes = 0,
        }
    }
    bytes.len()
}

/// Returns the strings of a JSON list or object; member names count as well, since a secret may stand there.
fn strings_inside(bytes: &[u8], at: usize) -> Vec<(Range<usize>, bool)> {
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut position = at;
    while position < bytes.len() {
        match bytes[position] {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b'"' => {
                let end = closing(bytes, position + 1, b"\"");
                let is_name = bytes.get(end + 1) == Some(&b':');
                if !is_name {
                    found.push((position + 1..end, false));
                }
                position = end;
            }
            b'\n' => break,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        position += 1;
    }
    // An empty value at the end says how far this has looked, so that no byte is looked at twice.
    let end = position.min(bytes.len());
    found.push((end..end, false));
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(input: &str) -> String {
        String::from_utf8(redact(input.as_bytes(), "salt").0).expect("text stays text")
    }

    #[test]
    fn nothing_and_harmless_text_come_back_unchanged() {
        for input in [
            "",
            "{}",
            "\0\0",
            r#"{"api_key": null, "admin_api_key": "", "max_total_num_tokens": 523, "tokenizer_path": "/m/tokenizer"}"#,
            r#"{"completion_tokens": 8, "total_output_tokens": 9, "eos_token": "</s>", "request_rate": Infinity}"#,
            r#"{"token": "the", "logprob": -0.1, "token_ids": [1, 2], "ssl_keyfile": "/etc/key.pem"}"#,
            "[TP0] Decode batch, #running-req: 10, #token: 1234, token usage: 0.01, gen throughput (token/s): 1.5",
            "ServerArgs(api_key=None, admin_api_key=None, tokenizer_mode='auto')",
            "the secret: of a long life, a bearer of arms, password: none known",
            "a risk-averse plan, sk-short, hf_short",
            "python -m serve --api-key",
            r#"{"api_key": "[redacted]"} api_key='[redacted]' --api-key [redacted]"#,
        ] {
            assert_eq!(text(input), input);
            assert_eq!(redact(input.as_bytes(), "salt").1, [], "{input}");
        }
    }

    #[test]
    fn every_form_of_a_secret_goes() {
        for (input, wanted) in [
            (r#"{"api_key": "abc"}"#, r#"{"api_key": "[redacted]"}"#),
            (r#"{"a": [{"b": {"apiKey":"a\"bc"}}]}"#, r#"{"a": [{"b": {"apiKey":"[redacted]"}}]}"#),
            (r#"{"password": 12345, "x": 1}"#, r#"{"password": "[redacted]", "x": 1}"#),
            (r#"{"api_keys": ["a1", "b2"], "n": 1}"#, r#"{"api_keys": ["[redacted]", "[redacted]"], "n": 1}"#),
            (
                r#"{"request_rate": Infinity, "x": NaN, "api_key": "s"}"#,
                r#"{"request_rate": Infinity, "x": NaN, "api_key": "[redacted]"}"#,
            ),
            (r#"{"log": "x\napi_key=zzz y"}"#, r#"{"log": "x\napi_key=[redacted] y"}"#),
            (
                r#"{"inner": "{\"api_key\": \"zz\", \"n\": 1}"}"#,
                r#"{"inner": "{\"api_key\": \"[redacted]\", \"n\": 1}"}"#,
            ),
            ("ServerArgs(tp=8, api_key='x y', n=1)", "ServerArgs(tp=8, api_key='[redacted]', n=1)"),
            ("serve --api-key X --port 1", "serve --api-key [redacted] --port 1"),
            ("serve --api-key=X --port 1", "serve --api-key=[redacted] --port 1"),
            ("serve\0--api-key\0X Y\0--port\0", "serve\0--api-key\0[redacted]\0--port\0"),
            (r#"["serve", "--api-key", "X Y", "--port"]"#, r#"["serve", "--api-key", "[redacted]", "--port"]"#),
            ("A=1\0HF_TOKEN=two words\0B=2\0", "A=1\0HF_TOKEN=[redacted]\0B=2\0"),
            ("export HUGGING_FACE_HUB_TOKEN=abc;", "export HUGGING_FACE_HUB_TOKEN=[redacted];"),
            ("Authorization: Bearer x\r\nHost: y", "Authorization: Bearer [redacted]\r\nHost: y"),
            (r#"{"Authorization": "Bearer x"}"#, r#"{"Authorization": "Bearer [redacted]"}"#),
            ("sent bearer abcdefgh12345678 ok", "sent bearer [redacted] ok"),
            ("key sk-proj-abcdefghijklmnop1234 used", "key [redacted] used"),
            ("clone https://me:pass@host/x", "clone https://me:[redacted]@host/x"),
            (r#"{"ssl_keyfile_password": "p"}"#, r#"{"ssl_keyfile_password": "[redacted]"}"#),
        ] {
            assert_eq!(text(input), wanted);
            assert!(!redact(input.as_bytes(), "salt").1.is_empty(), "{input}");
            assert_eq!(text(wanted), wanted, "a second pass changes nothing");
        }
    }

    #[test]
    fn a_known_value_goes_everywhere_and_its_digest_tells_equality() {
        let mut redactor = Redactor::new("edition");
        redactor.learn(br#"{"api_key": "open sesame 77"}"#);
        let (log, removed) = redactor.redact(b"client sent 'open sesame 77'!");
        assert_eq!(log, b"client sent '[redacted]'!");
        assert_eq!(removed, [Redaction { name: "api_key".into(), digest: Digest::of("edition\0open sesame 77") }]);
        let (again, other) = redact(br#"{"api_key": "open sesame 77"}"#, "edition");
        assert_eq!((removed, again), (other, br#"{"api_key": "[redacted]"}"#.to_vec()));
        assert_ne!(
            redact(br#"{"api_key": "open sesame 77"}"#, "another").1[0].digest,
            Digest::of("edition\0open sesame 77")
        );
    }

    #[test]
    fn environments_keep_allow_listed_values_only() {
        assert_eq!(environment_facts(b"", "s", &[]), BTreeMap::new());
        let environ = b"SGLANG_OEA_K0=4\0HOME=/home/me\0HF_TOKEN=abc\0MINE=7\0EMPTY=\0broken\0=x\0\xff=1\0HOME=2\0";
        let clear = ["MINE".to_owned()];
        let facts = environment_facts(environ, "s", &clear);
        assert_eq!(facts["SGLANG_OEA_K0"], FactValue::text("4"));
        assert_eq!(facts["MINE"], FactValue::text("7"));
        assert_eq!(facts["EMPTY"], FactValue::text(""));
        assert_eq!(facts["HOME"], FactValue::text(format!("sha256:{}", salted(b"/home/me", "s"))));
        assert_eq!(facts["HF_TOKEN"], FactValue::text(format!("sha256:{}", salted(b"abc", "s"))));
        assert_eq!(facts.len(), 5);

        let (sealed, removed) = Redactor::new("s").redact_environ(environ, &clear);
        assert_eq!(environment_facts(&sealed, "unknown salt", &clear), facts);
        assert_eq!(removed.iter().map(|removed| removed.name.as_str()).collect::<Vec<_>>(), ["HF_TOKEN"]);
        assert_eq!(Redactor::new("s").redact_environ(&sealed, &clear).0, sealed);
    }

    #[test]
    fn long_hostile_lines_take_linear_time() {
        let begin = std::time::Instant::now();
        for unit in [
            "a",
            "api_key=\"",
            "api_key=",
            "\\\"api_key\\\": ",
            "--api-key ",
            "[",
            "{\"password\":[",
            "\\",
            "sk-",
            "://a:",
            "bearer ",
        ] {
            let _ = redact(unit.repeat(1_000_000 / unit.len()).as_bytes(), "s");
            assert!(begin.elapsed().as_secs() < 30, "`{unit}` takes {:?}", begin.elapsed());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_a_second_pass_finds_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (once, removed) = redact(&bytes, "s");
            if removed.is_empty() {
                prop_assert_eq!(&once, &bytes);
            }
            prop_assert_eq!(redact(&once, "s").0, once);
        }

        #[test]
        fn a_secret_in_json_is_gone_and_the_json_stays_readable(secret in "[ -~]{1,40}", depth in 0_usize..4) {
            prop_assume!(is_secret_value("api_key", secret.as_bytes()));
            let mut value = serde_json::json!({"before": [1, null], "api_key": secret, "after": "x"});
            for _ in 0..depth {
                value = serde_json::json!({"list": [value]});
            }
            let (output, removed) = redact(value.to_string().as_bytes(), "s");
            let mut inner: serde_json::Value = serde_json::from_slice(&output).expect("JSON");
            for _ in 0..depth {
                inner = inner["list"][0].clone();
            }
            prop_assert_eq!(&inner, &serde_json::json!({"before": [1, null], "api_key": "[redacted]", "after": "x"}));
            prop_assert_eq!(removed.len(), 1);
        }
    }
}
