//! Captions as token ids.

use holdall_data::text::TextEncoder;

use crate::error::TrainError;

/// Token ids of each distinct caption, concatenated.
pub struct TokenTable {
    ids: Vec<u32>,
    ends: Vec<u32>,
}

impl TokenTable {
    /// Encodes every caption to at most `longest` tokens, including start and end token.
    pub fn new(
        text: &TextEncoder,
        captions: &[String],
        longest: usize,
    ) -> Result<TokenTable, TrainError> {
        let (mut ids, mut ends) = (Vec::new(), Vec::new());
        let mut row = vec![0; longest];
        for caption in captions {
            let length = text.encode_into(caption, &mut row)?;
            ids.extend(row[..length].iter().map(|&id| id as u32));
            ends.push(ids.len() as u32);
        }
        ids.shrink_to_fit();
        Ok(TokenTable { ids, ends })
    }

    pub fn caption(&self, index: usize) -> &[u32] {
        let start = match index {
            0 => 0,
            _ => self.ends[index - 1] as usize,
        };
        &self.ids[start..self.ends[index] as usize]
    }

    /// Number of captions.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of tokens of the longest caption.
    pub fn longest(&self) -> usize {
        (0..self.len())
            .map(|index| self.caption(index).len())
            .max()
            .unwrap_or(0)
    }

    /// Writes a caption's ids to `row`, padded with its end token.
    pub fn write(&self, index: usize, row: &mut [i64]) {
        let caption = self.caption(index);
        let end = caption.last().copied().unwrap_or(0);
        let ids = caption.iter().copied().chain(std::iter::repeat(end));
        for (to, id) in row.iter_mut().zip(ids) {
            *to = i64::from(id);
        }
    }
}
