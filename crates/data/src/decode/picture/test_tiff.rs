//! Writer of small TIFF files for tests, with features that the encoders here lack.

/// Grey pages of this width and height; `orientation` as EXIF numbers it, `subfile` the kind of all pages but the first.
pub(crate) fn grey_pages(
    (width, height): (u16, u16),
    orientation: u16,
    subfile: u16,
    pages: &[&[u8]],
) -> Vec<u8> {
    let mut file = b"II*\0\x08\0\0\0".to_vec();
    for (number, pixels) in pages.iter().enumerate() {
        assert_eq!(pixels.len(), usize::from(width) * usize::from(height));
        let tags = [
            (254, if number == 0 { 0 } else { subfile }),
            (256, width),
            (257, height),
            (258, 8),
            (259, 1),
            (262, 1),
            (273, 0),
            (274, orientation),
            (277, 1),
            (278, height),
            (279, width * height),
        ];
        let pixels_at = file.len() + 2 + 12 * tags.len() + 4;
        let next = if number + 1 == pages.len() {
            0
        } else {
            // Directories begin at even offsets.
            (pixels_at + pixels.len()).next_multiple_of(2)
        };
        file.extend((tags.len() as u16).to_le_bytes());
        for (tag, value) in tags {
            let value = match tag {
                273 => pixels_at as u32,
                _ => u32::from(value),
            };
            file.extend([tag, 4_u16].map(u16::to_le_bytes).concat());
            file.extend([1, value].map(u32::to_le_bytes).concat());
        }
        file.extend((next as u32).to_le_bytes());
        file.extend(*pixels);
        file.resize(file.len().next_multiple_of(2), 0);
    }
    file
}
