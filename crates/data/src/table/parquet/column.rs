//! Reads a column of a row group page by page, cell after cell.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use holdall_files::check_memory;

use super::codec::Codec;
pub(crate) use super::encodings::Value;
use super::encodings::{Dictionary, Values};
use super::footer::{Chunk, Leaf, Physical};
use super::hybrid::Hybrid;
use super::thrift::Thrift;
use super::{Limits, ParquetFault};

/// Growth of the buffers that is not compared with the memory limit: usual pages are of 1 MiB.
const UNCHECKED_BYTES: u64 = 2 << 20;

/// Iterates over the cells of a column in a row group.
#[derive(Debug)]
pub(crate) struct ColumnReader {
    file: File,
    physical: Physical,
    most_definition: u16,
    most_repetition: u16,
    codec: Codec,
    limits: Limits,
    /// Byte positions of the next page and of the column's end.
    at: u64,
    end: u64,
    /// Cells that the footer promises and that are not read yet.
    left_in_column: u64,
    left_in_page: usize,
    packed: Vec<u8>,
    page: Vec<u8>,
    dictionary: Dictionary,
    repetition: Hybrid,
    definition: Hybrid,
    values: Values,
    scratch: [u8; 8],
    /// Repetition level of the next cell, if `row_continues` has read it already.
    pending: Option<u32>,
}

/// Header of a page.
#[derive(Debug, Default)]
struct PageHeader {
    kind: i64,
    unpacked_bytes: i64,
    packed_bytes: i64,
    num_values: i64,
    encoding: i64,
    definition_encoding: i64,
    repetition_encoding: i64,
    definition_bytes: i64,
    repetition_bytes: i64,
    is_packed: bool,
    length: usize,
}

const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;
/// Bytes read for a page header: 256 at first, up to 1 MiB for writers that put statistics into it.
const HEADER_BYTES: [u64; 2] = [256, 1 << 20];

impl ColumnReader {
    pub(super) fn new(
        file: File,
        file_bytes: u64,
        leaf: &Leaf,
        chunk: &Chunk,
        limits: Limits,
    ) -> Result<ColumnReader, ParquetFault> {
        Ok(ColumnReader {
            file,
            physical: leaf.physical,
            most_definition: leaf.most_definition,
            most_repetition: leaf.most_repetition,
            codec: Codec::of(chunk.codec)?,
            limits,
            at: chunk.start,
            end: (chunk.start + chunk.num_bytes).min(file_bytes),
            left_in_column: chunk.num_values,
            left_in_page: 0,
            packed: Vec::new(),
            page: Vec::new(),
            dictionary: Dictionary::default(),
            repetition: Hybrid::default(),
            definition: Hybrid::default(),
            values: Values::Plain { at: 0 },
            scratch: [0; 8],
            pending: None,
        })
    }

    /// Whether the next cell continues the list of the last one.
    pub(crate) fn row_continues(&mut self) -> Result<bool, ParquetFault> {
        if self.most_repetition == 0 || self.left_in_column == 0 {
            return Ok(false);
        }
        self.find_page()?;
        let level = match self.pending {
            Some(level) => level,
            None => self.repetition.next(&self.page)?,
        };
        self.pending = Some(level);
        Ok(level > 0)
    }

    /// The next cell, or the next element of a cell's list; `None` where the cell is null or the list empty. An error past the last cell.
    pub(crate) fn next(&mut self) -> Result<Option<Value<'_>>, ParquetFault> {
        self.find_page()?;
        if self.pending.take().is_none() && self.most_repetition > 0 {
            self.repetition.next(&self.page)?;
        }
        let definition = match self.most_definition {
            0 => 0,
            _ => self.definition.next(&self.page)?,
        };
        self.left_in_page -= 1;
        self.left_in_column -= 1;
        let is_there = definition == u32::from(self.most_definition);
        if !is_there {
            return Ok(None);
        }
        let (page, dictionary) = (&self.page, &self.dictionary);
        let values = &mut self.values;
        let value = values.next(page, dictionary, self.physical, &mut self.scratch)?;
        Ok(Some(value))
    }

    /// Reads pages until one has a cell left.
    fn find_page(&mut self) -> Result<(), ParquetFault> {
        while self.left_in_page == 0 {
            if self.left_in_column == 0 || self.at >= self.end {
                return Err(ParquetFault::damaged(
                    "a column of fewer rows than the file has",
                ));
            }
            let header = self.read_header()?;
            self.read_page(&header)?;
        }
        Ok(())
    }

    fn read_header(&mut self) -> Result<PageHeader, ParquetFault> {
        for most_bytes in HEADER_BYTES {
            let num_bytes = most_bytes.min(self.end - self.at);
            self.packed.clear();
            self.file.seek(SeekFrom::Start(self.at))?;
            (&mut self.file)
                .take(num_bytes)
                .read_to_end(&mut self.packed)?;
            match PageHeader::parse(&self.packed) {
                Ok(header) => return Ok(header),
                Err(fault) if most_bytes == HEADER_BYTES[1] || num_bytes < most_bytes => {
                    return Err(fault);
                }
                Err(_) => {}
            }
        }
        Err(ParquetFault::damaged("a page without an end"))
    }

    fn read_page(&mut self, header: &PageHeader) -> Result<(), ParquetFault> {
        let too_large = || ParquetFault::damaged("a page that is too large");
        let most = self.limits.most_page_bytes;
        let size = |number: i64| u64::try_from(number).ok().filter(|size| *size <= most);
        let packed_bytes = size(header.packed_bytes).ok_or_else(too_large)?;
        let unpacked_bytes = size(header.unpacked_bytes).ok_or_else(too_large)? as usize;
        let start = self.at + header.length as u64;
        if start + packed_bytes > self.end {
            return Err(ParquetFault::damaged("a page that is cut short"));
        }
        // Buffers are kept from page to page and grow by the difference; a dictionary has its own.
        let page = match header.kind {
            DICTIONARY => 0,
            _ => self.page.capacity(),
        };
        let held = (self.packed.capacity() + page) as u64;
        let grown = (packed_bytes + unpacked_bytes as u64).saturating_sub(held);
        if grown > UNCHECKED_BYTES {
            check_memory(grown).map_err(ParquetFault::OverBudget)?;
        }
        self.packed.clear();
        self.packed.reserve_exact(packed_bytes as usize);
        self.file.seek(SeekFrom::Start(start))?;
        (&mut self.file)
            .take(packed_bytes)
            .read_to_end(&mut self.packed)?;
        if self.packed.len() as u64 != packed_bytes {
            return Err(ParquetFault::damaged("a page that is cut short"));
        }
        self.at = start + packed_bytes;
        match header.kind {
            DATA => {
                self.page.clear();
                self.codec
                    .unpack(&self.packed, unpacked_bytes, &mut self.page)?;
                self.begin_data(header)
            }
            DATA_V2 => {
                let sum = header.definition_bytes.checked_add(header.repetition_bytes);
                let levels = sum.and_then(|levels| usize::try_from(levels).ok());
                let levels = levels
                    .filter(|levels| *levels <= self.packed.len() && *levels <= unpacked_bytes);
                let levels =
                    levels.ok_or_else(|| ParquetFault::damaged("levels beyond their page"))?;
                self.page.clear();
                self.page.extend_from_slice(&self.packed[..levels]);
                let codec = if header.is_packed {
                    self.codec
                } else {
                    Codec::Plain
                };
                let values = &self.packed[levels..];
                // Where every cell is null, some writers store nothing.
                if !values.is_empty() {
                    codec.unpack(values, unpacked_bytes - levels, &mut self.page)?;
                }
                self.begin_data_v2(header, levels)
            }
            DICTIONARY => {
                let mut page = Vec::new();
                self.codec.unpack(&self.packed, unpacked_bytes, &mut page)?;
                let num_values = usize::try_from(header.num_values);
                let num_values = num_values.map_err(|_| too_large())?;
                self.dictionary = Dictionary::new(page, num_values, self.physical)?;
                Ok(())
            }
            // Index pages, and page kinds that future versions of the format may add.
            _ => Ok(()),
        }
    }

    /// Starts a data page whose levels stand before the values, each with its length in front.
    fn begin_data(&mut self, header: &PageHeader) -> Result<(), ParquetFault> {
        let mut at = 0;
        for (most, encoding, is_repetition) in [
            (self.most_repetition, header.repetition_encoding, true),
            (self.most_definition, header.definition_encoding, false),
        ] {
            if most == 0 {
                continue;
            }
            if encoding != 3 {
                return Err(ParquetFault::Unsupported(
                    "levels in an encoding that nobody writes any more (BIT_PACKED)",
                ));
            }
            let length = self.page.get(at..).and_then(|rest| rest.first_chunk());
            let length = length.map(|length| u32::from_le_bytes(*length) as usize);
            let end = length.and_then(|length| (at + 4).checked_add(length));
            let end = end.filter(|end| *end <= self.page.len());
            let end = end.ok_or_else(|| ParquetFault::damaged("levels beyond their page"))?;
            let levels = Hybrid::new(width_of(most), at + 4, end)?;
            if is_repetition {
                self.repetition = levels
            } else {
                self.definition = levels
            }
            at = end;
        }
        self.begin_values(header, at)
    }

    fn begin_data_v2(&mut self, header: &PageHeader, levels: usize) -> Result<(), ParquetFault> {
        let middle = usize::try_from(header.repetition_bytes)
            .map_err(|_| ParquetFault::damaged("levels beyond their page"))?;
        if self.most_repetition > 0 {
            self.repetition = Hybrid::new(width_of(self.most_repetition), 0, middle)?;
        }
        if self.most_definition > 0 {
            self.definition = Hybrid::new(width_of(self.most_definition), middle, levels)?;
        }
        self.begin_values(header, levels)
    }

    fn begin_values(&mut self, header: &PageHeader, at: usize) -> Result<(), ParquetFault> {
        let num_values = usize::try_from(header.num_values);
        let num_values =
            num_values.map_err(|_| ParquetFault::damaged("a page of less than no rows"))?;
        let encoding = header.encoding;
        self.values = Values::new(encoding, &self.page, at, num_values, self.physical)?;
        self.left_in_page = num_values.min(self.left_in_column.try_into().unwrap_or(usize::MAX));
        self.pending = None;
        Ok(())
    }
}

/// Bits of a level whose largest value is `most`.
fn width_of(most: u16) -> u32 {
    u16::BITS - most.leading_zeros()
}

impl PageHeader {
    fn parse(bytes: &[u8]) -> Result<PageHeader, ParquetFault> {
        let mut header = PageHeader {
            is_packed: true,
            ..PageHeader::default()
        };
        let mut thrift = Thrift::new(bytes);
        thrift.fields(|thrift, field| {
            match field.number {
                1 => header.kind = thrift.number(field)?,
                2 => header.unpacked_bytes = thrift.number(field)?,
                3 => header.packed_bytes = thrift.number(field)?,
                5 => thrift.fields(|thrift, field| {
                    match field.number {
                        1 => header.num_values = thrift.number(field)?,
                        2 => header.encoding = thrift.number(field)?,
                        3 => header.definition_encoding = thrift.number(field)?,
                        4 => header.repetition_encoding = thrift.number(field)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                7 => thrift.fields(|thrift, field| {
                    match field.number {
                        1 => header.num_values = thrift.number(field)?,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                8 => thrift.fields(|thrift, field| {
                    match field.number {
                        1 => header.num_values = thrift.number(field)?,
                        4 => header.encoding = thrift.number(field)?,
                        5 => header.definition_bytes = thrift.number(field)?,
                        6 => header.repetition_bytes = thrift.number(field)?,
                        7 => header.is_packed = thrift.number(field)? == 1,
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        header.length = thrift.position();
        Ok(header)
    }
}
