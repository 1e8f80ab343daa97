//! SHA-256 digests and canonical JSON: what an identity is made of.
//!
//! Invariant: a digest is of uncompressed bytes, and `sha256sum` alone can verify it.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest (FIPS 180-4); prints as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of `bytes`.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes.as_ref()).into())
    }

    /// Returns the digest of everything that `reader` yields, and how many bytes that were.
    ///
    /// # Errors
    ///
    /// What the reader reports.
    pub fn of_reader(mut reader: impl Read) -> io::Result<(Self, u64)> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 64 * 1024];
        let mut size = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok((Self(hasher.finalize().into()), size)),
                Ok(read) => {
                    hasher.update(&buffer[..read]);
                    size += read as u64;
                }
                Err(trouble) if trouble.kind() == io::ErrorKind::Interrupted => {}
                Err(trouble) => return Err(trouble),
            }
        }
    }

    /// Returns digest and size in bytes of a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or read.
    pub fn of_file(path: &Path) -> io::Result<(Self, u64)> {
        Self::of_reader(std::fs::File::open(path)?)
    }

    /// Reads 64 hex digits; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Returns the first `digits` hex digits, at most 64.
    pub fn short(&self, digits: usize) -> String {
        let mut text = self.to_string();
        text.truncate(digits);
        text
    }

    /// Returns the first eight bytes as a number: a seed that follows from an identity.
    pub fn seed(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("a digest has 32 bytes"))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{self}")
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is not 64 hex digits")))
    }
}

/// Writes JSON in one form only: keys in byte order, no blanks, numbers as `serde_json` prints them.
///
/// Two values with the same members give the same bytes, so the digest of these bytes is an identity.
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    write_canonical(value, &mut text);
    text
}

fn write_canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            let mut keys: Vec<&String> = members.keys().collect();
            keys.sort();
            text.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                text.push_str(&Value::String(key.clone()).to_string());
                text.push(':');
                write_canonical(&members[key], text);
            }
            text.push('}');
        }
        Value::Array(elements) => {
            text.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                write_canonical(element, text);
            }
            text.push(']');
        }
        scalar => text.push_str(&scalar.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn agrees_with_the_published_vectors() {
        // FIPS 180-4 examples: the empty message and "abc".
        assert_eq!(Digest::of("").to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::of("abc").to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn parse_reads_what_display_writes_and_nothing_else() {
        let digest = Digest::of("abc");
        assert_eq!(Digest::parse(&digest.to_string()), Some(digest));
        assert_eq!(Digest::parse(""), None);
        assert_eq!(Digest::parse(&"g".repeat(64)), None);
        assert_eq!(Digest::parse(&"é".repeat(32)), None);
        assert_eq!(digest.short(8), "ba7816bf");
    }

    #[test]
    fn canonical_json_ignores_the_order_of_members() {
        let one = json!({"b": [1, 2.5, null], "a": {"y": "é\"", "x": true}});
        let other = json!({"a": {"x": true, "y": "é\""}, "b": [1, 2.5, null]});
        assert_eq!(canonical_json(&one), canonical_json(&other));
        assert_eq!(canonical_json(&one), r#"{"a":{"x":true,"y":"é\""},"b":[1,2.5,null]}"#);
        assert_eq!(canonical_json(&json!({})), "{}");
    }
}
