//! The vocabulary: 2003 words, one token each, so that texts and token counts convert without loss.
//!
//! Id 0 is `<unk>`, 1 `<s>`, 2 `</s>`, and id `i` from 3 on is the word `w{i-3}`.

use crate::model::VOCABULARY;

/// The token that ends a text unless `ignore_eos` is set.
pub const END: u32 = 2;

const SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];

/// Ids of the words of `text`, separated by white space; an unknown word is 0.
pub fn encode(text: &str) -> Vec<u32> {
    text.split_whitespace().map(id).collect()
}

fn id(word: &str) -> u32 {
    if let Some(place) = SPECIAL.iter().position(|special| *special == word) {
        return place as u32;
    }
    let number = word.strip_prefix('w').filter(|digits| *digits == "0" || !digits.starts_with(['0', '+']));
    match number.and_then(|digits| digits.parse::<u32>().ok()) {
        Some(number) if (number as usize) < VOCABULARY - SPECIAL.len() => number + SPECIAL.len() as u32,
        _ => 0,
    }
}

/// The word of a token; an id outside the vocabulary is `<unk>`.
pub fn word(id: u32) -> String {
    match SPECIAL.get(id as usize) {
        Some(special) => (*special).to_owned(),
        None if (id as usize) < VOCABULARY => format!("w{}", id as usize - SPECIAL.len()),
        None => SPECIAL[0].to_owned(),
    }
}

/// The words of `ids`, separated by one space.
pub fn decode(ids: &[u32]) -> String {
    ids.iter().map(|id| word(*id)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_encodes_to_nothing() {
        assert!(encode(" \n").is_empty());
        assert_eq!(decode(&[]), "");
    }

    #[test]
    fn every_id_survives_the_round_trip() {
        let all: Vec<u32> = (0..VOCABULARY as u32).collect();
        assert_eq!(encode(&decode(&all)), all);
    }

    #[test]
    fn unknown_words_are_zero() {
        assert_eq!(encode("w0 w1999 w2000 w01 w+1 w-1 w hello </s>"), [3, 2002, 0, 0, 0, 0, 0, 0, 2]);
    }
}
