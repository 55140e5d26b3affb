//! The card's memory: pages of this process, counted as the driver counts them, with guards on both sides and NaNs in them.
//!
//! An allocation ends where a page that nobody may touch begins, so that a kernel that reads beyond its last byte (rounded to 256) faults.
//! Freed memory is unmapped: a kernel that uses it later faults too.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::foreign::slice_mut;
use crate::model::{CONTEXT_BYTES, model};

/// Pages that the driver hands out.
const PAGE_BYTES: u64 = 2 << 20;

const ALIGNMENT: u64 = 256;

/// Bytes of a guard, and of this machine's pages.
const GUARD_BYTES: u64 = 4096;

/// Larger allocations are not filled with NaNs: that would make all their pages.
const POISONED_BYTES: u64 = 1 << 30;

/// Not a number in every format.
const POISON: u8 = 0xff;

struct Mapping {
    /// Bytes as they were asked for.
    bytes: u64,
    base: u64,
    mapped_bytes: u64,
}

/// The tensors of a plan: which bytes of its arena a kernel may touch.
pub struct Tensors {
    pub base: u64,
    /// A byte for each of the arena's: 0 lies outside of every tensor.
    pub is_inside: Vec<u8>,
}

/// Memory of one card.
#[derive(Default)]
pub struct Memory {
    total_bytes: u64,
    /// Host memory that allocations go on in where the card is full: under Windows.
    shared_bytes: u64,
    /// Pinned host memory, where the driver charges it against the card.
    pinned_bytes: u64,
    ordinal: usize,
    has_context: bool,
    allocations: BTreeMap<u64, Mapping>,
    /// Bytes of small things: modules, graphs, libraries.
    small_bytes: u64,
    /// Last written for other processes to see.
    told_bytes: u64,
    /// How often it was asked what is free.
    num_asked: u64,
    /// Tensors of the arena that a test has described.
    tensors: Option<Tensors>,
}

impl Memory {
    pub fn new(ordinal: usize, total_bytes: u64, shared_bytes: u64) -> Memory {
        Memory {
            total_bytes,
            shared_bytes,
            ordinal,
            ..Memory::default()
        }
    }

    /// Card memory of this process, the context included.
    pub fn held_bytes(&self) -> u64 {
        let context = if self.has_context { CONTEXT_BYTES } else { 0 };
        let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
        // Small allocations share pages.
        let is_small = |mapping: &&Mapping| mapping.bytes < PAGE_BYTES / 2;
        let (small, large): (Vec<_>, Vec<_>) = self.allocations.values().partition(is_small);
        let small: u64 = small
            .iter()
            .map(|mapping| mapping.bytes.next_multiple_of(512))
            .sum();
        let large: u64 = large.iter().map(|mapping| pages(mapping.bytes)).sum();
        context + large + pages(small) + pages(self.small_bytes) + self.pinned_bytes
    }

    /// Notes what is pinned, on a card that this is charged against.
    pub fn charge_pinned(&mut self, bytes: u64) {
        if self.shared_bytes > 0 {
            self.pinned_bytes = bytes;
            self.tell();
        }
    }

    /// Whether some of what is held lies in the host's memory.
    pub fn is_spilled(&self) -> bool {
        self.held_bytes() > self.total_bytes
    }

    /// Upper bound of all allocations.
    fn most_bytes(&self) -> u64 {
        self.total_bytes + self.shared_bytes
    }

    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Bytes held by all processes together.
    fn taken_bytes(&self) -> u64 {
        let others: u64 = self.others().iter().map(|(_, bytes)| bytes).sum();
        self.held_bytes() + others
    }

    /// Bytes of the card's own memory in use.
    pub fn used_bytes(&self) -> u64 {
        self.taken_bytes().min(self.total_bytes)
    }

    /// Bytes that the driver calls free: host memory counts, up to the size of the card.
    pub fn free_bytes(&self) -> u64 {
        let free = self.most_bytes().saturating_sub(self.taken_bytes());
        free.min(self.total_bytes)
    }

    /// Opens or closes the context; whether there is room for it.
    pub fn set_context(&mut self, is_open: bool) -> bool {
        let fits = !is_open || self.has_context || self.free_bytes() >= CONTEXT_BYTES;
        if fits {
            self.has_context = is_open;
            self.tell();
        }
        fits
    }

    /// Counts what a module, a graph or a library takes; whether there is room.
    pub fn take_small(&mut self, bytes: u64) -> bool {
        let before = self.small_bytes;
        self.small_bytes += bytes;
        if self.held_bytes() > self.most_bytes() {
            self.small_bytes = before;
            return false;
        }
        self.tell();
        true
    }

    pub fn give_small(&mut self, bytes: u64) {
        self.small_bytes -= bytes;
        self.tell();
    }

    /// An address, or `None` where the card has no room.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        if bytes == 0 || self.free_bytes() < bytes {
            return None;
        }
        let aligned = bytes.next_multiple_of(ALIGNMENT);
        let mapped_bytes = aligned.next_multiple_of(GUARD_BYTES) + 2 * GUARD_BYTES;
        // SAFETY: fresh pages; the first and the last stay without rights.
        let base = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let base = libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes as usize,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return None;
            }
            libc::mprotect(
                base.wrapping_byte_add(GUARD_BYTES as usize),
                (mapped_bytes - 2 * GUARD_BYTES) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
            );
            base as u64
        };
        let address = base + mapped_bytes - GUARD_BYTES - aligned;
        let mapping = Mapping {
            bytes,
            base,
            mapped_bytes,
        };
        self.allocations.insert(address, mapping);
        if self.held_bytes() > self.most_bytes() {
            self.free(address);
            return None;
        }
        if bytes <= POISONED_BYTES {
            slice_mut::<u8>(address, aligned as usize).fill(POISON);
        }
        self.tell();
        Some(address)
    }

    /// Whether there was an allocation at that address.
    pub fn free(&mut self, address: u64) -> bool {
        let Some(mapping) = self.allocations.remove(&address) else {
            return false;
        };
        self.tensors.take_if(|tensors| tensors.base == address);
        // SAFETY: mapped in `allocate`; the caller has let all work end that uses it.
        unsafe {
            libc::munmap(
                mapping.base as usize as *mut _,
                mapping.mapped_bytes as usize,
            )
        };
        self.tell();
        true
    }

    /// Takes the tensors of the only allocation of so many bytes, and fills them with NaNs; whether there is exactly one.
    pub fn describe_tensors(&mut self, is_inside: &[u8]) -> bool {
        let bytes = is_inside.len() as u64;
        let mut found = self.allocations.iter();
        let mut found = found.by_ref().filter(|(_, mapping)| mapping.bytes == bytes);
        let (Some((&base, _)), None) = (found.next(), found.next()) else {
            return false;
        };
        slice_mut::<u8>(base, is_inside.len()).fill(POISON);
        self.tensors = Some(Tensors {
            base,
            is_inside: is_inside.to_vec(),
        });
        true
    }

    /// Tensors of the arena that a test has described.
    pub fn tensors(&self) -> Option<&Tensors> {
        self.tensors.as_ref()
    }

    /// Whether a range leaves the tensors of the arena that it begins in.
    pub fn leaves_tensors(&self, address: u64, bytes: u64) -> bool {
        let Some(Tensors { base, is_inside }) = &self.tensors else {
            return false;
        };
        let Some(first) = address.checked_sub(*base).map(|first| first as usize) else {
            return false;
        };
        let Some(range) = is_inside.get(first..) else {
            return false;
        };
        range.iter().take(bytes as usize).any(|&inside| inside == 0)
    }

    /// Whether a range lies within one allocation.
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        let before = self.allocations.range(..=address).next_back();
        before.is_some_and(|(start, mapping)| {
            address
                .checked_add(bytes)
                .is_some_and(|end| end <= start + mapping.bytes)
        })
    }

    /// Where an address lies, for people: in an allocation, or near one.
    pub fn describe(&self, address: u64) -> String {
        let near = 64 << 20;
        if let Some((start, mapping)) = self.allocations.range(..=address).next_back() {
            let (offset, bytes) = (address - start, mapping.bytes);
            if offset < bytes {
                let between = if self.leaves_tensors(address, 1) {
                    "outside of every tensor, "
                } else {
                    ""
                };
                return format!("{between}byte {offset} of an allocation of {bytes} bytes");
            }
            if offset - bytes < near {
                let behind = offset - bytes;
                return format!("{behind} bytes behind an allocation of {bytes} bytes");
            }
        }
        match self.allocations.range(address..).next() {
            Some((start, mapping)) if start - address < near => format!(
                "{} bytes before an allocation of {} bytes",
                start - address,
                mapping.bytes
            ),
            _ => "outside of every allocation".to_owned(),
        }
    }

    /// Somebody asks what is free.
    pub fn note_question(&mut self) {
        self.num_asked += 1;
    }

    /// Other processes on this card, and what they hold.
    pub fn others(&self) -> Vec<(u32, u64)> {
        let mut others = self.others_here();
        let neighbour = model().ok().and_then(|model| model.neighbour);
        if let Some(neighbour) = neighbour.filter(|one| self.num_asked >= one.after) {
            // The first process of a machine is always there.
            others.push((1, neighbour.bytes));
        }
        others
    }

    fn others_here(&self) -> Vec<(u32, u64)> {
        let Ok(entries) = std::fs::read_dir(folder_of(self.ordinal)) else {
            return Vec::new();
        };
        let own = std::process::id();
        let process = |entry: std::fs::DirEntry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let lives = PathBuf::from(format!("/proc/{pid}")).exists();
            if pid == own || !lives {
                return None;
            }
            let bytes = std::fs::read_to_string(entry.path()).ok()?;
            Some((pid, bytes.trim().parse().ok()?))
        };
        entries.flatten().filter_map(process).collect()
    }

    /// Lets other processes see what this one holds.
    fn tell(&mut self) {
        let held = self.held_bytes();
        if held == self.told_bytes {
            return;
        }
        self.told_bytes = held;
        let folder = folder_of(self.ordinal);
        let file = folder.join(std::process::id().to_string());
        // Where nothing can be written each process has the card to itself.
        let _ = std::fs::create_dir_all(&folder);
        let _ = if held == 0 {
            std::fs::remove_file(file)
        } else {
            std::fs::write(file, held.to_string())
        };
    }
}

/// Where processes that share a card say what they hold.
fn folder_of(ordinal: usize) -> PathBuf {
    let machine = crate::model::model().map_or("this", |model| &model.machine);
    crate::nvrtc::own_folder().join(format!("processes/{machine}/{ordinal}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_pages_and_refused_at_the_end() {
        let mut memory = Memory::new(900, 16 << 20, 0);
        let first = memory.allocate(3 << 20).unwrap();
        assert_eq!(memory.held_bytes(), 4 << 20);
        let small = memory.allocate(256).unwrap();
        let other = memory.allocate(256).unwrap();
        assert_eq!(memory.held_bytes(), 6 << 20);
        assert_eq!(memory.allocate((10 << 20) + 1), None);
        let rest = memory.allocate(10 << 20).unwrap();
        assert_eq!(memory.allocate(1), None);
        assert!(memory.contains(rest, 10 << 20) && !memory.contains(rest, (10 << 20) + 1));
        for address in [first, small, other, rest] {
            assert!(memory.free(address));
            assert!(!memory.free(address));
        }
        assert_eq!(memory.held_bytes(), 0);
    }

    #[test]
    fn under_windows_memory_goes_on_in_the_hosts() {
        let mut memory = Memory::new(902, 16 << 20, 16 << 20);
        let first = memory.allocate(12 << 20).unwrap();
        assert_eq!(memory.free_bytes(), 16 << 20);
        assert!(!memory.is_spilled());
        let second = memory.allocate(12 << 20).unwrap();
        assert!(memory.is_spilled());
        assert_eq!(memory.free_bytes(), 8 << 20);
        assert_eq!(memory.allocate(12 << 20), None);
        memory.charge_pinned(6 << 20);
        assert_eq!(memory.free_bytes(), 2 << 20);
        for address in [first, second] {
            assert!(memory.free(address));
        }
    }

    #[test]
    fn an_address_is_described_by_the_allocation_that_it_lies_in() {
        let mut memory = Memory::new(903, 16 << 20, 0);
        let all = [256u64, 512, 1024].map(|bytes| (memory.allocate(bytes).unwrap(), bytes));
        for (address, bytes) in all {
            let inside = memory.describe(address + 17);
            assert_eq!(inside, format!("byte 17 of an allocation of {bytes} bytes"));
            let behind = memory.describe(address + bytes + 3);
            assert_eq!(
                behind,
                format!("3 bytes behind an allocation of {bytes} bytes")
            );
        }
        for (address, _) in all {
            memory.free(address);
        }
    }

    #[test]
    fn what_nobody_wrote_is_not_a_number() {
        let mut memory = Memory::new(901, 16 << 20, 0);
        let address = memory.allocate(64).unwrap();
        let values = crate::foreign::slice::<f32>(address, 16);
        assert!(values.iter().all(|value| value.is_nan()));
        memory.free(address);
    }
}
