//! Reader of Thrift's compact protocol: fields of a struct by their numbers; unknown fields are skipped.

use super::ParquetFault;

/// Type codes of the wire format.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Nesting limit of structs; no real file comes near it.
const MOST_DEPTH: u32 = 32;

/// Cursor over the bytes of a struct.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

/// Header of a struct field; its value is next in the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) number: i32,
    pub(super) kind: u8,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Thrift<'a> {
        Thrift {
            bytes,
            at: 0,
            depth: 0,
        }
    }

    /// Number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn cut_short() -> ParquetFault {
        ParquetFault::damaged("metadata that is cut short")
    }

    fn byte(&mut self) -> Result<u8, ParquetFault> {
        let byte = *self.bytes.get(self.at).ok_or_else(Thrift::cut_short)?;
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Result<u64, ParquetFault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ParquetFault::damaged("a number of more than 64 bits"))
    }

    fn zigzag(&mut self) -> Result<i64, ParquetFault> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn length(&mut self) -> Result<usize, ParquetFault> {
        let length = self.varint()?;
        // Every element takes at least one byte.
        match usize::try_from(length) {
            Ok(length) if length <= self.bytes.len() - self.at => Ok(length),
            _ => Err(Thrift::cut_short()),
        }
    }

    /// Passes each field to `take`; a field for which `take` returns false is skipped.
    pub(super) fn fields(
        &mut self,
        mut take: impl FnMut(&mut Thrift<'a>, Field) -> Result<bool, ParquetFault>,
    ) -> Result<(), ParquetFault> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(ParquetFault::damaged("metadata without end"));
        }
        let mut number = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                self.depth -= 1;
                return Ok(());
            }
            number = match head >> 4 {
                0 => self.zigzag()? as i32,
                more => number.wrapping_add(i32::from(more)),
            };
            let field = Field {
                number,
                kind: head & 0x0f,
            };
            if !take(self, field)? {
                self.skip(field.kind)?;
            }
        }
    }

    /// Passes each element of a list to `take`.
    pub(super) fn list(
        &mut self,
        field: Field,
        mut take: impl FnMut(&mut Thrift<'a>, u8) -> Result<(), ParquetFault>,
    ) -> Result<(), ParquetFault> {
        if !matches!(field.kind, LIST | SET) {
            return Err(ParquetFault::damaged("metadata of another kind"));
        }
        let (length, kind) = self.list_head()?;
        (0..length).try_for_each(|_| take(self, kind))
    }

    fn list_head(&mut self) -> Result<(usize, u8), ParquetFault> {
        let head = self.byte()?;
        let length = match head >> 4 {
            15 => self.length()?,
            length => usize::from(length),
        };
        Ok((length, head & 0x0f))
    }

    pub(super) fn number(&mut self, field: Field) -> Result<i64, ParquetFault> {
        match field.kind {
            I16 | I32 | I64 => self.zigzag(),
            BYTE => Ok(i64::from(self.byte()? as i8)),
            TRUE => Ok(1),
            FALSE => Ok(0),
            _ => Err(ParquetFault::damaged("metadata of another kind")),
        }
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], ParquetFault> {
        let length = self.length()?;
        let bytes = &self.bytes[self.at..self.at + length];
        self.at += length;
        Ok(bytes)
    }

    pub(super) fn text(&mut self) -> Result<String, ParquetFault> {
        Ok(String::from_utf8_lossy(self.binary()?).into_owned())
    }

    fn skip(&mut self, kind: u8) -> Result<(), ParquetFault> {
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.byte().map(|_| ()),
            I16 | I32 | I64 => self.varint().map(|_| ()),
            DOUBLE => {
                self.at += 8;
                if self.at <= self.bytes.len() {
                    Ok(())
                } else {
                    Err(Thrift::cut_short())
                }
            }
            BINARY => self.binary().map(|_| ()),
            LIST | SET => {
                let (length, kind) = self.list_head()?;
                (0..length).try_for_each(|_| self.skip_element(kind))
            }
            MAP => {
                let length = self.length()?;
                if length == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..length).try_for_each(|_| {
                    self.skip_element(kinds >> 4)?;
                    self.skip_element(kinds & 0x0f)
                })
            }
            STRUCT => self.fields(|_, _| Ok(false)),
            _ => Err(ParquetFault::damaged("metadata of an unknown kind")),
        }
    }

    /// Skips an element of a list or map, where a boolean takes a byte of its own.
    fn skip_element(&mut self, kind: u8) -> Result<(), ParquetFault> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(ParquetFault::damaged("metadata without end"));
        }
        let skipped = match kind {
            TRUE | FALSE => self.byte().map(|_| ()),
            kind => self.skip(kind),
        };
        self.depth -= 1;
        skipped
    }
}
