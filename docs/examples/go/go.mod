module octavo.example/reader

go 1.18
